"""What watches a run while it trains: the health monitor and the convergence check, fed every event."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainer.config import Config
from trainer.events import Alert, Decision, Event
from trainer.monitoring import HealthMonitor
from trainer.monitoring.convergence import ConvergenceCheck


class RunWatch:
    """Alarms and decisions about the events of a run, `past` ones first; what is to be told of those was told then.

    config_of: the configuration of now.
    """

    def __init__(self, config_of: Callable[[], Config], past: Sequence[Event]) -> None:
        self._health = HealthMonitor(config_of)
        self._convergence = ConvergenceCheck(config_of)
        for event in past:
            self.take(event)

    @property
    def open_alarms(self) -> dict[str, str]:
        """Code and level of the alarms that are not over."""
        return self._health.open

    def take(self, event: Event) -> list[Alert]:
        """What is to be told right after `event`, and to be fed then."""
        return [*self._health.take(event), *self._convergence.take(event)]

    def due(self, iteration: int) -> Decision | None:
        """What is to be done between `iteration` and the next: the decision to stop, or else to roll back."""
        return self._convergence.due(iteration)
