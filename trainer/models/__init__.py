"""Models: loading, adapters, heads, the starter model, and the BLAS under MLX on a CPU."""
