"""Direct preference optimisation: trains a policy on preferences, without a reward model and without samples."""
