"""Several processes that train one run together, on one machine or many, by MLX's collectives."""
