"""Machine files (TOML)."""
