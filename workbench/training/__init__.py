"""Charts and alarms of a run."""
