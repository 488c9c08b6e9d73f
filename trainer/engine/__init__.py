"""Life of a run of any kind: requests, training, checkpoints, resuming, rolling back, answers, branches, sweeps."""
