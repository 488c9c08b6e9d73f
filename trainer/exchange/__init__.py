"""Runs handed to other trainers: their settings, data and models in the forms that TRL, OpenRLHF and verl read."""
