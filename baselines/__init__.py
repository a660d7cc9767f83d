"""Strategies, one folder a system: found by shardbench.trials.discovery, never named by the harness."""
