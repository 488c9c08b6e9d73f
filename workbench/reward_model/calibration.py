"""Calibration of a reward model: its accuracy against the probability that it gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from trainer.reward_model.report import CalibrationBin
from workbench.kit.drawing import Drawn, Line, component_classes, line_of, rule
from workbench.kit.sparkline import bar

_BINS = 10  # from 0.5 to 1
_LABELS = 6  # columns
_WIDEST = 8


def calibration_lines(bins: Sequence[CalibrationBin], error: float, width: int, height: int) -> list[Line]:
    """Return at most `height` lines of at most `width` columns: title, bars with ◂ at the given probability, counts.

    There is a bar and a count of pairs per bin. A bar that ends below its ◂ shows that the model is overconfident.
    """
    told = f" · error {error:.3f}" if math.isfinite(error) else ""
    title = rule(f"calibration{told} · bar: right, ◂: said", width)
    across = (width - _LABELS - 1) // _BINS
    if not bins:
        return [title, [(" no decided pair was held out yet"[:width], "muted")]][:height]
    if across < 2:
        return [title][:height]
    across, rows = min(across, _WIDEST), max(height - 3, 1)
    stacks: list[list[tuple[str, str]]] = [[(" ", "text")] * (across * _BINS) for _ in range(rows)]
    counts, marks = [" "] * (across * _BINS), [""] * _BINS
    for one in bins:
        place = min(round(_within(2 * one.low - 1) * _BINS), _BINS - 1)
        for row, cell in enumerate(reversed(bar(_within(one.accuracy), rows))):
            for column in range(place * across, (place + 1) * across - 1):
                stacks[row][column] = (cell, "series")
        stacks[min(int((1 - _within(one.confidence)) * rows), rows - 1)][(place + 1) * across - 1] = ("◂", "target")
        marks[place] = _count(one.pairs, across - 1)
    for place, text in enumerate(marks):
        counts[place * across : place * across + len(text)] = text
    labels = {0: "100 %", rows - 1: "0 %"} if rows > 1 else {}
    plot: list[Line] = [
        [(labels.get(row, "").rjust(_LABELS) + " ", "muted"), *line_of(cells)] for row, cells in enumerate(stacks)
    ]
    ends = "0.5" + "said".center(across * _BINS - 6) + "1.0"
    return [
        title,
        *plot,
        [("pairs".rjust(_LABELS) + " ", "muted"), ("".join(counts), "muted")],
        [(" " * (_LABELS + 1) + ends, "muted")],
    ][:height]


def _within(share: float) -> float:
    """Clip `share` to 0 to 1, whatever a file contains; 0 if it is not finite."""
    return min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0


def _count(pairs: int, width: int) -> str:
    """Return a number of pairs in at most `width` columns; + if it does not fit."""
    text = str(pairs) if pairs < 1000 else f"{pairs // 1000}k"
    return text if len(text) <= width else "+"


class RewardCalibration(Drawn):
    """Widget that draws the bins it was given last."""

    COMPONENT_CLASSES: ClassVar[set[str]] = component_classes("text", "muted", "axis", "series", "target")

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._bins: Sequence[CalibrationBin] = ()
        self._error = math.nan

    def show(self, bins: Sequence[CalibrationBin], error: float) -> None:
        """Draw `bins` from now on; error: the expected calibration error (ECE)."""
        self._bins, self._error = tuple(bins), error
        self.redraw()

    def draw(self, width: int, height: int) -> list[Line]:
        return calibration_lines(self._bins, self._error, width, height)
