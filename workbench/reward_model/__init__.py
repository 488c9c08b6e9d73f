"""Runs of reward models as a screen has them: found in a folder, followed, and what they say pair by pair."""
