"""A run as the screen knows it, trained here, by another process, or ended."""
