"""Suites are TOML files; `shardbench.runs.suite` says what they may state."""
