"""Sequences that a run has written: read, searched, explained and exported. Knows nothing of any screen."""
