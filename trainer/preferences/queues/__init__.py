"""Queues of comparisons for a labelling session, made lazily, and their mixture. Imports no MLX."""
