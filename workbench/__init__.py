"""The command line and the screen of ppo-workbench. They use no tensors and never import mlx."""
