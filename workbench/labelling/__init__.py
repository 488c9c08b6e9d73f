"""Labelling: a session that is asked, answered and kept. Knows nothing of any screen."""
