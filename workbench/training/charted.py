"""Settings that all charts of a run share."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.kit.window import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Charted:
    """The part of a history to draw, the cursor in it, and how to draw it."""

    window: Window
    at: int | None = None  # the cursor's position in the history; None: the newest iteration
    average: bool = False  # draw the exponential moving average
    log: bool = False  # logarithmic axis, if the metric has one

    @property
    def iteration(self) -> int | None:
        """Iteration at the cursor; None without a cursor."""
        return None if self.at is None else self.window.history.numbers[self.at]
