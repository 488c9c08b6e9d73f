"""The charts of a run and its alarms."""
