"""Steering of a run under way: requests of this and other processes, questions to the model, live settings."""
