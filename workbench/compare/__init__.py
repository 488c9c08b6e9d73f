"""Comparison of runs, side by side. Reads no files and depends on no screen."""
