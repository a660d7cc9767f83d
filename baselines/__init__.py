"""Strategies, one folder a system: found by shardbench.model.discovery, never named by the harness."""
