"""What all charts of a run have in common."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.kit.window import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Charted:
    """What is drawn, and how: a part of a history, and where the cursor is in it."""

    window: Window
    at: int | None = None  # the cursor's position in the history; None: the newest iteration
    average: bool = False  # draw the exponential moving average
    log: bool = False  # logarithmic axes, where a metric has one

    @property
    def iteration(self) -> int | None:
        """The iteration that the cursor is at."""
        return None if self.at is None else self.window.history.numbers[self.at]
