"""The source of a run's events: this process, another one, or a run that has ended."""

from __future__ import annotations

from typing import Protocol

from trainer.events import Event


class EventSource(Protocol):
    """A source that returns the events of a run in order, each once."""

    def take(self) -> list[Event]:
        """Return the events since the last call, at once."""

    @property
    def finished(self) -> bool:
        """Whether the run is over and all its events were taken."""
