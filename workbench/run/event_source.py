"""Where the events of a run come from: this process, another one, or a run that ended."""

from __future__ import annotations

from typing import Protocol

from trainer.events import Event


class EventSource(Protocol):
    """Hands over the events of a run in order, each once."""

    def take(self) -> list[Event]:
        """What is new since the last call; returns at once."""

    @property
    def finished(self) -> bool:
        """Whether the run is over and all its events were taken."""
