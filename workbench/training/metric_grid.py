"""Grid of the metrics of a run: a cell each with its value, its change and its sparkline."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from workbench.kit.axes import Axis, Window, moving_average, number_text, scale_of, tick_texts
from workbench.kit.glyphs import bar
from workbench.run.history import Bucket
from workbench.run.metrics import Metric
from workbench.text import MISSING, Line, Piece, line_of, plain

LIMIT = "┄"
_VALUE = 7  # columns at most, without the sign of a value past its limit
_LEAST_VALUE = 5
_CHANGE = 9
_BESIDE_FROM = 64  # columns of a tall cell whose sparkline is beside its numbers
_LEAST_SPARK = 8  # columns, before the change gets any
_LIMIT = 7  # columns of the threshold beside a sparkline
_LIMIT_FROM = 40  # columns of a sparkline that leaves room for the threshold


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


class CellShape(NamedTuple):
    """Places of the parts of a cell; the same for all cells of a column, so that they are aligned."""

    height: int
    stacked: bool  # the sparkline is under the numbers
    numbers: int  # columns of label, unit and value, which ends there
    change: int  # columns: 0, 1 for the arrow, or enough for the number too
    spark: int  # columns
    spark_at: int  # the first of these columns
    limit: int  # columns for the threshold to the right of the sparkline


class Reading(NamedTuple):
    """A value in the shown unit, and its change from the previous iteration; NaN if there is none."""

    value: float
    change: float


def cell_shape(charted: Charted, metrics: Sequence[Metric], width: int, height: int) -> CellShape:
    """Return the shape of cells of `width` columns and `height` lines that hold `metrics`."""
    numbers = max(
        len(_name(metric)) + 1 + max(len(_value_text(reading_at(charted, metric), metric)), _LEAST_VALUE)
        for metric in metrics
    )
    stacked = height > 1 and width < _BESIDE_FROM
    room = width - 1 - numbers - (0 if stacked else 1 + _LEAST_SPARK)
    change = _CHANGE if room > _CHANGE + (0 if stacked else _LEAST_SPARK) else int(room > 1)
    if stacked:
        return CellShape(height, True, numbers, change, max(width - 2, 0), 1, 0)
    left = 1 + numbers + (1 + change if change else 0) + 1
    room = max(width - left, 0)
    limit = _LIMIT if room - _LIMIT >= _LIMIT_FROM else 0
    return CellShape(height, False, numbers, change, room - limit, left, limit)


def reading_at(charted: Charted, metric: Metric) -> Reading:
    """Return the value of `metric` at the cursor, or the newest one without a cursor."""
    values = charted.window.history.column(metric.field)
    at = len(values) - 1 if charted.at is None else charted.at
    if not 0 <= at < len(values):
        return Reading(math.nan, math.nan)
    value = values[at] * metric.factor
    return Reading(value, value - values[at - 1] * metric.factor if at else math.nan)


def metric_cell(
    charted: Charted, metric: Metric, width: int, shape: CellShape, *, selected: bool = False
) -> list[Line]:
    """Return the `shape.height` lines of a cell, each of `width` columns."""
    columns = charted.window.columns(metric, shape.spark)
    values = moving_average(columns) if charted.average else [math.nan if c is None else c.mean for c in columns]
    scale = scale_of(zip(values, values, strict=True), metric, log=charted.log)
    here = -1 if charted.iteration is None else charted.window.column_of(charted.iteration, len(columns))
    places = [place * len(columns) // max(shape.spark, 1) for place in range(shape.spark if columns else 0)]
    spark = metric_bars(
        [columns[place] for place in places],
        [values[place] for place in places],
        scale,
        metric,
        height=shape.height - shape.stacked,
        cursor={column for column, place in enumerate(places) if place == here},
    )
    numbers = _numbers(reading_at(charted, metric), metric, shape, selected=selected)
    if shape.stacked:
        lines = [
            [*numbers, _end(metric, scale, width - 1 - len(plain(numbers)))],
            *([_gap(1), *line] for line in spark),
        ]
    else:
        lines = [[_gap(shape.spark_at), *line] for line in spark]
        lines[0] = [*numbers, _gap(shape.spark_at - len(plain(numbers))), *spark[0]]
        if shape.height > 1:
            lines[1] = [*_beneath(scale, shape.spark_at), *spark[1]]
        if shape.limit and metric.threshold is not None:
            lines[0] += [_gap(1), _limit(metric)]
    return [[*line, _gap(width - len(plain(line)))] for line in lines]


def metric_bars(
    columns: Sequence[Bucket | None],
    values: Sequence[float],
    scale: Axis,
    metric: Metric,
    *,
    height: int = 1,
    cursor: Collection[int] = (),
) -> list[Line]:
    """Return `height` lines with `values` as bars, one cell a column.

    × marks a bucket that lacks a number; a bucket that is None leaves a gap. Bars beyond the metric's threshold have
    the role of the threshold, which is drawn where it crosses no bar. No bar reaches the top of its line, so that cells
    stay apart. cursor: places of the cursor.
    """
    limit = None
    if height > 1 and metric.threshold is not None and scale.holds(metric.threshold):
        limit = min(int(scale.position(metric.threshold) * height), height - 1)
    stacks = []
    for place, (bucket, value) in enumerate(zip(columns, values, strict=True)):
        cells = bar(scale.position(value), height)
        role = "target" if metric.beyond(value) else "series"
        if bucket is not None and bucket.missing:
            cells, role = [MISSING, *cells[1:]], "missing"
        stack = [(cell, role) for cell in cells]
        if limit is not None and cells[limit] == " ":
            stack[limit] = (LIMIT, "target")
        if place in cursor:
            stack = [(cell if cell != " " else "│", "cursor") for cell, _ in stack]
        stacks.append(stack)
    return [line_of(stack[level] for stack in stacks) for level in reversed(range(height))]


def change_text(change: float, digits: int, width: int) -> str:
    """Return ▲ or ▼ and, if it fits, the size of the change; = if the digits show none, nothing if it is not finite."""
    if not math.isfinite(change) or width < 1:
        return ""
    size = number_text(abs(change), digits, max(width - 2, 7))
    if not size.strip("0."):
        return "="
    arrow = "▲" if change > 0 else "▼"
    return f"{arrow} {size}" if len(size) + 2 <= width else arrow


def value_text(charted: Charted, metric: Metric) -> str:
    """Return the name of `metric` and its value at the cursor with its unit, as a user would paste it."""
    value = reading_at(charted, metric).value
    return f"{metric.label} {metric.with_unit(value) if math.isfinite(value) else number_text(value, metric.digits, 9)}"


def _name(metric: Metric) -> str:
    return f"{metric.label} {metric.unit}".rstrip()


def _value_text(reading: Reading, metric: Metric) -> str:
    """Return the value after ! if it is past the threshold, which is then also visible without colour."""
    return ("!" if metric.beyond(reading.value) else "") + number_text(reading.value, metric.digits, _VALUE)


def _numbers(reading: Reading, metric: Metric, shape: CellShape, *, selected: bool) -> Line:
    text = _value_text(reading, metric)
    role = "missing" if not math.isfinite(reading.value) else "target" if text.startswith("!") else "strong"
    name = _name(metric)
    line: Line = [
        ("▸" if selected else " ", "selected"),
        (metric.label, "selected" if selected else "text"),
        (name[len(metric.label) :], "muted"),
        (text.rjust(shape.numbers - len(name)), role),
    ]
    if shape.change:
        line.append((" " + change_text(reading.change, metric.digits, shape.change).ljust(shape.change), "muted"))
    return line


def _end(metric: Metric, scale: Axis, width: int) -> Piece:
    """Return the threshold, or else the ends of the axis, for the place right of the numbers; empty if too wide."""
    text, role = (_range(scale, width), "muted") if metric.threshold is None else _limit(metric)
    return (text.rjust(width) if len(text) < width else "", role)


def _beneath(scale: Axis, width: int) -> Line:
    """Return the ends of the axis, for the line below the value."""
    return [(_range(scale, width - 3).rjust(width - 2), "muted"), _gap(2)]


def _range(scale: Axis, width: int) -> str:
    ends = [10.0 ** min(end, 308) for end in scale[:2]] if scale.log else list(scale[:2])
    low, high = tick_texts([float(f"{end:.2g}") for end in ends])
    text = f"{low} … {high}"
    return text if len(text) <= width else ""


def _limit(metric: Metric) -> Piece:
    return (f"{LIMIT} {metric.threshold:g}", "target")


def _gap(width: int) -> Piece:
    return (" " * max(width, 0), "text")
