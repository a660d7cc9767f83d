"""Suites are TOML files; `shardbench.trials.suite` says what they may state."""
