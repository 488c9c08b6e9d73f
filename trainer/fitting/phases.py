"""Phases of an iteration or a step: the progress of each, and its duration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import mlx.core as mx

from trainer.control.control import Control
from trainer.events import Event, Phase, PhaseProgress


class Phases:
    """Reporter of phases, and timer of them that excludes pauses.

    seconds: duration of each timed phase since the caller last cleared it.
    """

    def __init__(self, emit: Callable[[Event], None], control: Control) -> None:
        self.seconds: dict[str, float] = {}
        self._emit = emit
        self._control = control

    def report(self, iteration: int, phase: Phase, *, passes: int = 1) -> Callable[[int, int], None]:
        """Report the start; return a function that reports (done, total) of each of `passes`, and hears requests."""
        finished = 0

        def progress(done: int, total: int) -> None:
            nonlocal finished
            self._control.check()
            done_of_all, all_of_it = finished * total + done, total * passes
            self._emit(PhaseProgress(iteration=iteration, phase=phase, done=done_of_all, total=all_of_it))
            if done == total:
                finished += 1

        self._control.check()
        self._emit(PhaseProgress(iteration=iteration, phase=phase, done=0, total=1))
        return progress

    @contextmanager
    def __call__(self, iteration: int, phase: Phase, *, passes: int = 1) -> Iterator[Callable[[int, int], None]]:
        """Time a phase; yield what `report` returns."""
        progress = self.report(iteration, phase, passes=passes)
        started = self._control.clock()
        yield progress
        mx.clear_cache()  # phases differ in shapes, so the next cannot reuse these buffers
        self.seconds[phase] = self._control.clock() - started
