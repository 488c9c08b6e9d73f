"""Training curve of a reward model: loss and accuracy over the steps, in training and on held-out pairs."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar, NamedTuple

from workbench.kit.braille import DOTS_ACROSS, DOTS_DOWN, Canvas
from workbench.kit.drawing import Drawn, Line, component_classes, line_of, rule
from workbench.kit.scale import Scale
from workbench.kit.window import moving_average
from workbench.reward_model.course import Course
from workbench.run.history import Bucket

_HELD_OUT = "◆"
_LABELS = 7  # columns


class _Series(NamedTuple):
    """One number over the steps; points are (step, value)."""

    name: str
    form: str
    least_span: float
    line: list[tuple[int, float]]  # moving averages
    held_out: list[tuple[int, float]]

    @property
    def newest(self) -> str:
        value = next((value for _, value in reversed(self.line) if math.isfinite(value)), math.nan)
        return "" if math.isnan(value) else f" · {self.name} {self.form.format(value)}"

    def scale(self) -> Scale:
        values = [value for _, value in (*self.line, *self.held_out) if math.isfinite(value)]
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        short = max(self.least_span - (high - low), 0.0)
        return Scale(low - short / 2, high + short / 2)


def curve_lines(course: Course, width: int, height: int) -> list[Line]:
    """Return at most `height` lines of at most `width` columns: title, loss, below it accuracy, and the step axis.

    Lines are moving averages over the steps; ◆ is a value on held-out pairs. Costs one pass over the columns.
    """
    if not course.numbers and not course.evaluations:
        return [rule("training", width), [(" no step has been taken yet"[:width], "muted")]][:height]
    across, rows = width - _LABELS - 1, height - 2
    found = course.evaluations
    loss = _Series(
        "loss",
        "{:.3f}",
        0.05,
        _averages(course.numbers, course.losses, across * DOTS_ACROSS),
        [(one.iteration, one.log_loss) for one in found],
    )
    right = _Series(
        "right",
        "{:.0%}",
        0.1,
        _averages(course.numbers, course.accuracies, across * DOTS_ACROSS),
        [(one.iteration, one.accuracy) for one in found],
    )
    lines = [rule(f"training{loss.newest}{right.newest} · {_HELD_OUT} held out", width)]
    if across < 4 or rows < 2:
        return lines[:height]
    reached = max(course.step, found[-1].iteration if found else 0, 1)
    last = reached if course.ended else max(course.total, reached)
    for series, down in ((loss, -(-rows // 2)), (right, rows // 2)):
        lines += _plot(series, last, across, down)
    lines.append([("step".rjust(_LABELS) + " ", "muted"), *_axis(last, across)])
    return lines[:height]


def _averages(numbers: array[int], values: array[float], width: int) -> list[tuple[int, float]]:
    """Return at most `width` points of the moving average, each at the middle step of its bucket."""
    width = min(max(width, 0), len(values))
    edges = [place * len(values) // width for place in range(width + 1)] if width else []
    buckets = [_bucket(values[first:end], first) for first, end in pairwise(edges)]
    steps = [numbers[(bucket.first_index + bucket.last_index) // 2] for bucket in buckets]
    return list(zip(steps, moving_average(buckets), strict=True))


def _bucket(values: Sequence[float], first: int) -> Bucket:
    finite = [value for value in values if math.isfinite(value)]
    last_index, missing = first + len(values) - 1, len(values) - len(finite)
    if not finite:
        return Bucket(math.nan, math.nan, math.nan, math.nan, first, last_index, missing)
    mean = sum(value / len(finite) for value in finite)
    return Bucket(min(finite), max(finite), mean, finite[-1], first, last_index, missing)


def _plot(series: _Series, last: int, across: int, down: int) -> list[Line]:
    """Draw one series as lines, with the ends of its scale."""
    scale, canvas, top = series.scale(), Canvas(across, down), DOTS_DOWN * down - 1
    before: tuple[int, int] | None = None
    for step, value in series.line:
        if math.isnan(value):
            before = None
            continue
        here = round(step / last * (across * DOTS_ACROSS - 1)), round((1 - scale.position(value)) * top)
        canvas.line(before or here, here, "series")
        before = here
    rows = canvas.rows()
    for step, value in series.held_out:
        if math.isfinite(value):
            row = round((1 - scale.position(value)) * top) // DOTS_DOWN
            rows[row][round(max(step, 0) / last * (across - 1))] = (_HELD_OUT, "strong")
    labels = {0: series.form.format(scale.high)}
    if down > 1:
        labels[down - 1] = series.form.format(scale.low)
    return [
        [(labels.get(row, "").rjust(_LABELS)[:_LABELS] + "│", "muted"), *line_of(cells)]
        for row, cells in enumerate(rows)
    ]


def _axis(last: int, across: int) -> Line:
    end = str(last)
    room = across - len(end) - 3
    return [("0 ", "muted"), ("─" * room, "axis"), (f" {end}", "muted")] if room > 0 else [(end[:across], "muted")]


class RewardCurve(Drawn):
    """Widget that draws the course it was given last."""

    COMPONENT_CLASSES: ClassVar[set[str]] = component_classes("text", "strong", "muted", "axis", "series")

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._course = Course()

    def show(self, course: Course) -> None:
        """Draw `course`, which must not change any more, from now on."""
        self._course = course
        self.redraw()

    def draw(self, width: int, height: int) -> list[Line]:
        return curve_lines(self._course, width, height)
