"""Direct preference optimisation: a policy learnt from preferences, without a reward model and without samples."""
