"""Suites (TOML): see shardbench.runs.suite."""
