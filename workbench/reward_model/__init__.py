"""Reward-model runs on the screen: finding them in a folder, following one, and showing its pairs."""
