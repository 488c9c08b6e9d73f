"""The life of a PPO run: training, resuming, rolling back, answering, and evaluating a checkpoint."""
