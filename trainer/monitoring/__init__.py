"""Rules that watch a run's events and say when it goes wrong: no tensors, no files, no screen."""

from trainer.monitoring.monitor import HealthMonitor
from trainer.monitoring.rules import RULES

__all__ = ["RULES", "HealthMonitor"]
