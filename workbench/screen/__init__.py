"""The main screen, which puts the rooms together."""
