"""Histogram of the scores of an iteration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from workbench.kit.axes import Axis, number_text
from workbench.kit.drawing import Drawn, component_classes, rule
from workbench.kit.glyphs import bar_lines
from workbench.text import Line

_MOST_BINS = 40
_WIDEST_BIN = 3  # columns
_DIGITS = 2


def histogram(scores: Sequence[float], iteration: int, width: int, height: int) -> list[Line]:
    """Return the scores of `iteration` as at most `height` lines of at most `width` columns: title, bars and axis.

    The title counts the scores that are not finite. With n scores there are about 2 * sqrt(n) bins, from 5 to 40.
    """
    finite = [score for score in scores if math.isfinite(score)]
    lines = [_title(iteration, finite, len(scores) - len(finite), width)]
    across = width - 2
    if not finite or across < 1:
        return lines[:height]
    low, high = min(finite), max(finite)
    bins = min(max(round(2 * math.sqrt(len(finite))), 5), _MOST_BINS, across) if high > low else 1
    counts, scale = [0] * bins, Axis(low, high)
    for score in finite:
        counts[min(int(scale.position(score) * bins), bins - 1)] += 1
    rows = max(height - 2, 1)
    columns = min(across // bins, _WIDEST_BIN)
    lines += [[(" " + bars, "series")] for bars in bar_lines(counts, max(counts), rows, columns)]
    lines.append(_axis(finite, scale, bins * columns))
    return lines[:height]


def _title(iteration: int, finite: Sequence[float], missing: int, width: int) -> Line:
    text = f"scores of iteration {iteration} · {len(finite) + missing}"
    if finite:
        mean, deviation = _moments(finite)
        text += f" · mean {number_text(mean, _DIGITS, 9)}"
        if len(text) + 16 <= width:
            text += f" ± {number_text(deviation, _DIGITS, 9)}"
    return rule(text, width, missing=missing)


def _axis(finite: Sequence[float], scale: Axis, width: int) -> Line:
    """Return the axis: its ends and the place of the mean."""
    low, high = number_text(scale.low, _DIGITS, 9), number_text(scale.high, _DIGITS, 9)
    if scale.high <= scale.low:
        return [(f" {low}", "muted")]
    room = width - len(low) - len(high) - 2
    if room < 1:
        return [(f" {low} {high}", "muted")]
    mean = round(scale.position(_moments(finite)[0]) * (width - 1)) - len(low) - 1
    line = "".join("┴" if place == mean else "─" for place in range(room))
    return [(f" {low} ", "muted"), (line, "axis"), (f" {high}", "muted")]


def _moments(finite: Sequence[float]) -> tuple[float, float]:
    """Return mean and deviation; dividing first keeps the sum of large numbers finite."""
    mean = sum(score / len(finite) for score in finite)
    largest = max(abs(score - mean) for score in finite)
    if not 0 < largest < math.inf:
        return mean, largest
    return mean, largest * math.sqrt(sum(((score - mean) / largest) ** 2 for score in finite) / len(finite))


class ScoreHistogram(Drawn):
    """Histogram of the scores of one iteration."""

    COMPONENT_CLASSES: ClassVar[set[str]] = component_classes("muted", "axis", "series", "missing")
    _scores: Sequence[float] = ()
    _iteration = 0

    @property
    def empty(self) -> bool:
        """Return whether there are no scores."""
        return not self._scores

    def show(self, scores: Sequence[float], iteration: int = 0) -> None:
        """Replace the scores by those of `iteration`."""
        self._scores, self._iteration = tuple(scores), iteration
        self.redraw()

    def draw(self, width: int, height: int) -> list[Line]:
        return histogram(self._scores, self._iteration, width, height)
