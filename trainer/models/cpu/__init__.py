"""Additions to MLX on a Linux CPU: a fast matrix product, reuse of freed memory, and vectorised kernels."""
