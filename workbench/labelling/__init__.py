"""Labelling: sessions that show comparisons and save the labels, and the screens for them."""
