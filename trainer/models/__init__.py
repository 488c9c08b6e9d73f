"""Models: loading, adapters, heads, the starter model, and the BLAS that MLX uses on a CPU."""
