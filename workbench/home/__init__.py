"""The Home pane: what the workbench opens on when it is given no run."""
