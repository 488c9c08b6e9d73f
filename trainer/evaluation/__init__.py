"""Evaluations of a policy: held-out prompts, intervals, human preferences."""
