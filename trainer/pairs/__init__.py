"""Comparisons as rows to train on: read, encoded, grouped by prompt and split."""
