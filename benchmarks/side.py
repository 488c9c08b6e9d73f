"""What a peer's process prints for comparison.py: events as JSON, with the seconds of each phase.

Imports only the standard library, because it runs in the environments of the peers.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

Emit = Callable[[dict[str, Any]], None]


@contextlib.contextmanager
def event_output() -> Iterator[Emit]:
    """Yield a function that prints an event as one line; all else that is printed goes to stderr meanwhile."""
    events = sys.stdout

    def emit(event: dict[str, Any]) -> None:
        print(json.dumps(event), file=events, flush=True)

    with contextlib.redirect_stdout(sys.stderr):
        yield emit


class PhaseClock:
    """Clock of the phases of an iteration, for trainers that report none."""

    def __init__(self, emit: Emit) -> None:
        self.emit = emit
        self.seconds: dict[str, float] = {}
        self.mark = 0.0
        self.tokens = 0  # generated so far

    def start(self) -> None:
        """Start the clock of the first iteration."""
        self.mark = time.perf_counter()

    def end(self, phase: str) -> None:
        """Record the seconds since the last phase ended as those of `phase`."""
        now = time.perf_counter()
        self.seconds[phase] = now - self.mark
        self.mark = now

    def end_generation(self, tokens: int) -> None:
        """End the phase "generate", in which `tokens` tokens were written."""
        self.end("generate")
        self.tokens += tokens

    def end_iteration(self) -> None:
        """End the update, and emit the iteration."""
        self.end("update")
        self.emit({"event": "iteration", "seconds": self.seconds, "tokens": self.tokens})
        self.seconds = {}
