"""Sinks of a run's events: several at once, and the progress file, which other processes read."""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from trainer.errors import TrainerError
from trainer.events import Event, PhaseProgress
from trainer.files import PRIVATE, SHARED, read_regular, write_whole
from trainer.runs.journal_lines import event_in, values_in


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


_A_SECOND = 4
_WITHIN_A_PHASE = 2  # fewer, so that the beginning of a phase, whose first step may take long, is written


class ProgressFile:
    """Sink that keeps the newest transient event in a file, written at most four times a second.

    `close` removes the file; `kill -9` leaves it behind. Write errors are ignored, because the file is no loss. clock:
    seconds. shared: others may read it.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic, *, shared: bool = False) -> None:
        self.path = path
        self._clock = clock
        self._mode = SHARED if shared else PRIVATE
        self._written: deque[float] = deque(maxlen=_A_SECOND)
        self._phase = ("", 0)
        self.close()

    def emit(self, event: Event) -> None:
        """Write `event` if it reports progress and fewer than the allowed writes fell within the last second."""
        if not isinstance(event, PhaseProgress):
            return
        now, phase = self._clock(), (event.phase, event.iteration)
        room = _WITHIN_A_PHASE if phase == self._phase else _A_SECOND
        if sum(now - written < 1 for written in self._written) >= room:
            return
        self._phase = phase
        self._written.append(now)
        with contextlib.suppress(OSError):
            write_whole(self.path, json.dumps(event.as_dict()), mode=self._mode)

    def close(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)


def read_progress(path: Path) -> PhaseProgress | None:
    """Return what a `ProgressFile` wrote last; None if there is no such file or it contains something else.

    A killed process leaves its file behind: call this only for a run that is live.
    """
    try:
        event = event_in({"time": 0, **values_in(read_regular(path))})
    except (OSError, ValueError):
        return None
    return event if isinstance(event, PhaseProgress) else None
