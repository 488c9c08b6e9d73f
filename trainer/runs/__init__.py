"""A run on disk: its folder, lock, journal, samples and checkpoints, and who else hears its events."""
