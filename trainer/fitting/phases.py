"""Reports of an iteration or a step: progress, duration and memory of its phases, and steps that were skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import mlx.core as mx

from trainer.arrays import clear_cache
from trainer.control.control import Control
from trainer.distributed.ranks import ALONE, Ranks
from trainer.errors import DivergedError
from trainer.events import Alert, Event, Phase, PhaseProgress

MAX_SKIPPED_IN_A_ROW = 3


class Phases:
    """Reporter of phases, and timer of them that excludes pauses.

    seconds: duration of each timed phase since the last `begin`; memory: peak of MLX's own allocations, bytes.
    """

    def __init__(self, emit: Callable[[Event], None], control: Control, ranks: Ranks = ALONE) -> None:
        self.seconds: dict[str, float] = {}
        self.memory: dict[str, int] = {}
        self.latest: Phase | None = None
        """Phase that was reported last."""
        self._emit = emit
        self._control = control
        self._ranks = ranks

    def begin(self) -> None:
        """Forget the phases before."""
        self.seconds, self.memory = {}, {}

    def report(self, iteration: int, phase: Phase, *, passes: int = 1) -> Callable[[int, int], None]:
        """Report the start; return a function that reports (done, total) of each of `passes`, and hears requests.

        Several ranks hear requests only at the start of a phase, where they wait for each other.
        """
        finished = 0
        self.latest = phase

        def progress(done: int, total: int) -> None:
            nonlocal finished
            if self._ranks.alone:
                self._control.check()
            done_of_all, all_of_it = finished * total + done, total * passes
            self._emit(PhaseProgress(iteration=iteration, phase=phase, done=done_of_all, total=all_of_it))
            if done == total:
                finished += 1

        self._ranks.meet(self._control.check)
        self._emit(PhaseProgress(iteration=iteration, phase=phase, done=0, total=1))
        return progress

    @contextmanager
    def __call__(self, iteration: int, phase: Phase, *, passes: int = 1) -> Iterator[Callable[[int, int], None]]:
        """Time a phase; yield what `report` returns."""
        progress = self.report(iteration, phase, passes=passes)
        started = self._control.clock()
        mx.reset_peak_memory()
        yield progress
        self.memory[phase] = mx.get_peak_memory()
        clear_cache()  # phases differ in shapes, so the next cannot reuse these buffers
        self.seconds[phase] = self._control.clock() - started


class SkippedSteps:
    """Counter of steps that were skipped in a row because loss or gradient was NaN or inf.

    unit: what the run counts. hint: ends the alert. remedy: returns the advice in the error, when it is raised.
    """

    def __init__(self, unit: Literal["iteration", "step"], remedy: Callable[[], str], *, hint: str = "") -> None:
        self.in_a_row = 0
        self._unit = unit
        self._remedy = remedy
        self._hint = hint

    def after(self, number: int, *, skipped: bool, emit: Callable[[Event], None]) -> None:
        """Report a step of `number` if it was skipped. Raises DivergedError at the third in a row."""
        if not skipped:
            self.in_a_row = 0
            return
        self.in_a_row += 1
        message = f"loss or gradient was NaN or inf: the step was skipped{self._hint}"
        emit(Alert(iteration=number, level="warning", code="step_skipped", message=message))
        if self.in_a_row == MAX_SKIPPED_IN_A_ROW:
            raise DivergedError(
                f"loss or gradient was NaN or inf {MAX_SKIPPED_IN_A_ROW} times in a row at {self._unit} {number}: "
                f"{self._remedy()}"
            )
