"""Rules that watch a run's events and report when it goes wrong. No tensors, files or screen."""

from trainer.monitoring.monitor import HealthMonitor
from trainer.monitoring.rules import RULES

__all__ = ["RULES", "HealthMonitor"]
