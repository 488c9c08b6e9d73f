"""Memory of a run by part and phase, estimated before the model is loaded. Nothing here imports MLX."""
