"""Evaluations of a policy: held-out prompts and intervals."""
