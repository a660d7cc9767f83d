"""Suites (TOML): see shardbench.suite."""
