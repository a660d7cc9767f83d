"""Strategies, one folder a system: found by shardbench.runs.discovery, never named by the harness."""
