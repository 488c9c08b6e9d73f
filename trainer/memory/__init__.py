"""How much memory a run needs, by part and phase, computed before anything is loaded. Nothing here imports MLX."""
