"""What takes the events of a run: the journal, displays, trackers, the workbench."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trainer.errors import TrainerError
from trainer.events import Event


class Sink(Protocol):
    """Takes events in order. `close` is called once, also after a failure."""

    def emit(self, event: Event) -> None:
        """Take one event; called on the trainer's thread, so it must be quick."""

    def close(self) -> None:
        """Flush and release what the sink holds."""


class Sinks:
    """Hands each event to several sinks, in order."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = list(sinks)

    def add_first(self, sink: Sink) -> None:
        """Put `sink` before the others: the journal has an event before anyone shows it."""
        self._sinks.insert(0, sink)

    def add(self, sinks: Sequence[Sink]) -> None:
        """Put `sinks` after the others."""
        self._sinks.extend(sinks)

    def emit(self, event: Event) -> None:
        """Give `event` to each sink in turn."""
        for sink in self._sinks:
            sink.emit(event)

    def close(self) -> None:
        """Close every sink, also after one that raises; the first error is raised then."""
        errors = []
        for sink in self._sinks:
            try:
                sink.close()
            except TrainerError as error:
                errors.append(error)
        if errors:
            raise errors[0]
