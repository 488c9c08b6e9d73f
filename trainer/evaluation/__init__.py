"""Evaluations of a policy: held-out prompts, intervals, what people say."""
