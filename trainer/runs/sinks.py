"""Sinks of a run's events: the journal, displays, trackers, the workbench."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trainer.errors import TrainerError
from trainer.events import Event


class Sink(Protocol):
    """Receiver of events, in order. `close` is called once, also after a failure."""

    def emit(self, event: Event) -> None:
        """Receive one event. The trainer's thread calls this, so it must be quick."""

    def close(self) -> None:
        """Flush and release what the sink holds."""


class Sinks:
    """Several sinks that receive each event in order."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = list(sinks)

    def add_first(self, sink: Sink) -> None:
        """Put `sink` before the others, so that the journal has an event before anyone shows it."""
        self._sinks.insert(0, sink)

    def add(self, sinks: Sequence[Sink]) -> None:
        """Put `sinks` after the others."""
        self._sinks.extend(sinks)

    def emit(self, event: Event) -> None:
        """Pass `event` to each sink in turn."""
        for sink in self._sinks:
            sink.emit(event)

    def close(self) -> None:
        """Close every sink, also after one that raises; then raise the first error."""
        errors = []
        for sink in self._sinks:
            try:
                sink.close()
            except TrainerError as error:
                errors.append(error)
        if errors:
            raise errors[0]
