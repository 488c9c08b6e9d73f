"""Configuration editor, as a form and as TOML."""
