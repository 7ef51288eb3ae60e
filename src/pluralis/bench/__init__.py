"""A bench: one TOML spec becomes runs, and the runs become tables."""
