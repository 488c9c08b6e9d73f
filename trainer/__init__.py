"""Reinforcement learning from human feedback on MLX, as a library: it knows nothing of any screen."""

from trainer.models import blas

blas.load_blas()  # before anything imports mlx.core
