"""Preferences as training needs them: encoded, grouped by prompt, and split into training and held-out."""
