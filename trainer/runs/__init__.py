"""A run on disk: its folder, lock, journal, samples and checkpoints, and the sinks of its events."""
