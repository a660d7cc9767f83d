"""Machine files (TOML): see shardbench.machine."""
