"""Reward models learnt from preferences: an adapter and a scalar head on a backbone that others may share."""
