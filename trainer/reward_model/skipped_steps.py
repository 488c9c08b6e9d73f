"""Steps that were skipped because loss or gradient was NaN or inf. `MAX_IN_A_ROW` in a row end the training."""

from __future__ import annotations

from collections.abc import Callable

from trainer.errors import DivergedError
from trainer.events import Alert, Event

MAX_IN_A_ROW = 3


class SkippedSteps:
    """Counter of skipped steps. lr: the learning rate, which the error suggests to lower."""

    def __init__(self, lr: float) -> None:
        self._lr = lr
        self._in_a_row = 0

    def after(self, number: int, *, taken: bool, emit: Callable[[Event], None]) -> None:
        """Report step `number` if it was skipped. Raises DivergedError at the third in a row."""
        if taken:
            self._in_a_row = 0
            return
        self._in_a_row += 1
        message = "loss or gradient was NaN or inf: the step was skipped"
        emit(Alert(iteration=number, level="warning", code="step_skipped", message=message))
        if self._in_a_row == MAX_IN_A_ROW:
            raise DivergedError(
                f"loss or gradient was NaN or inf {MAX_IN_A_ROW} times in a row at step {number}: lower "
                f"optim.lr ({self._lr:g}) and start anew"
            )
