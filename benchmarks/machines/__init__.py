"""Machine files are TOML files; `shardbench.model.machine_file` says how they are read."""
