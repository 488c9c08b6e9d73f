"""What MLX lacks on a Linux CPU: a fast matrix product, freed memory that stays, kernels of our own."""
