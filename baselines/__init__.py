"""Strategies, one folder a system: found by shardbench.discovery, never named by the harness."""
