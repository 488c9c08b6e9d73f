"""The configuration as a form and as TOML."""
