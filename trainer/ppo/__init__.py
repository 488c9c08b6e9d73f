"""PPO: the loop, its steps, the estimators, the learner, and its state between two iterations."""
