"""Training steps of PPO, reward models and DPO: gradients over micro-batches, the optimiser, phases, runs of steps."""
