"""Machine files are TOML files; `shardbench.model.machine` says what they state."""
