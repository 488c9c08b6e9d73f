"""What a labelling session asks next: queues of comparisons, made lazily, and their mixture. Imports no MLX."""
