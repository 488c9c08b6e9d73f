"""Widgets of the panes, one a file; what they draw can be tested without an application."""
