"""Machine files (TOML): see shardbench.model.machine."""
