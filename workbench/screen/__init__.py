"""The main screen, which combines the panes."""
