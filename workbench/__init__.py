"""The command line and the screen of ppo-workbench. Knows nothing of tensors: it never imports mlx."""
