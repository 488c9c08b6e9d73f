"""Rules that watch a run's events and report when it goes wrong or is done. No tensors, files or screen."""

from trainer.monitoring.monitor import ALARM_RULES, DECISION_RULES, Monitor

__all__ = ["ALARM_RULES", "DECISION_RULES", "Monitor"]
