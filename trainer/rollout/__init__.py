"""Rollouts: responses by continuous batching, sampling, experience, and the texts of tokens."""
