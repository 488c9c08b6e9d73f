"""Dialogs over the workbench, each a screen of its own that answers with a value."""
