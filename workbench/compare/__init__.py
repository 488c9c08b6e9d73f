"""Comparison of runs, side by side. It depends on no screen."""
