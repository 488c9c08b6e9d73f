"""Reports of an iteration or a step: progress, duration and memory of its phases, and steps that were skipped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import mlx.core as mx

from trainer.arrays import clear_cache
from trainer.errors import DivergedError
from trainer.events import Alert, Phase, PhaseProgress, Progress, Report, ignored

MAX_SKIPPED_IN_A_ROW = 3


class Phases:
    """Reporter and timer of phases. clock: seconds, on one that stops while a run is paused.

    The report of a phase with `done = 0` is its start. seconds: duration of each timed phase since the last `begin`;
    memory: peak of MLX's own allocations, bytes.
    """

    def __init__(self, report: Report = ignored, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.begin()
        self.latest: Phase | None = None
        """Phase that was reported last."""
        self._report = report

    def begin(self) -> None:
        """Forget the phases before."""
        self.seconds: dict[str, float] = {}
        self.memory: dict[str, int] = {}
        self.began = self.clock()

    def start(self, iteration: int, phase: Phase, *, passes: int = 1) -> Progress:
        """Report the start of a phase; return a function that reports (done, total) of each of its `passes`."""
        finished = 0
        self.latest = phase

        def progress(done: int, total: int) -> None:
            nonlocal finished
            if finished or done:
                done_of_all, all_of_it = finished * total + done, total * passes
                self._report(PhaseProgress(iteration=iteration, phase=phase, done=done_of_all, total=all_of_it))
            finished += done == total

        self._report(PhaseProgress(iteration=iteration, phase=phase, done=0, total=1))
        return progress

    @contextmanager
    def __call__(self, iteration: int, phase: Phase, *, passes: int = 1) -> Iterator[Progress]:
        """Time a phase, which may have several parts; yield what `start` returns."""
        progress = self.start(iteration, phase, passes=passes)
        started = self.clock()
        mx.reset_peak_memory()
        yield progress
        self.memory[phase] = max(mx.get_peak_memory(), self.memory.get(phase, 0))
        clear_cache()  # phases differ in shapes, so the next cannot reuse these buffers
        self.seconds[phase] = self.clock() - started + self.seconds.get(phase, 0.0)


class SkippedSteps:
    """Counter of steps that were skipped in a row because loss or gradient was NaN or inf.

    unit: what the run counts. hint: ends the alert. remedy: returns the advice in the error, when it is raised.
    """

    def __init__(self, unit: Literal["iteration", "step"], remedy: Callable[[], str], *, hint: str = "") -> None:
        self.in_a_row = 0
        self._unit = unit
        self._remedy = remedy
        self._hint = hint

    def after(self, number: int, *, skipped: bool, report: Report) -> None:
        """Report a step of `number` if it was skipped. Raises DivergedError at the third in a row."""
        if not skipped:
            self.in_a_row = 0
            return
        self.in_a_row += 1
        message = f"loss or gradient was NaN or inf: the step was skipped{self._hint}"
        report(Alert(iteration=number, level="warning", code="step_skipped", message=message))
        if self.in_a_row == MAX_SKIPPED_IN_A_ROW:
            raise DivergedError(
                f"loss or gradient was NaN or inf {MAX_SKIPPED_IN_A_ROW} times in a row at {self._unit} {number}: "
                f"{self._remedy()}"
            )
