"""Life of a PPO run: training, resuming, rolling back, answering questions, and evaluating a checkpoint."""
