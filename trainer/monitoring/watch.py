"""Watch over a training run: the health monitor and the convergence check, which get every event."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainer.config import Config
from trainer.events import Alert, Decision, Event
from trainer.monitoring import HealthMonitor
from trainer.monitoring.convergence import ConvergenceCheck


class RunWatch:
    """Alarms and decisions about the events of a run.

    config_of: returns the current configuration; past: earlier events, whose alarms and decisions were reported then.
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
        """Return the alarms and decisions to report right after `event`, and then to `take` as well."""
        return [*self._health.take(event), *self._convergence.take(event)]

    def due(self, iteration: int) -> Decision | None:
        """Return the decision due between `iteration` and the next: to stop, or else to roll back, or None."""
        return self._convergence.due(iteration)
