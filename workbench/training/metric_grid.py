"""Grid of the metrics of a run: a cell each with its value, its change and its sparkline."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trainer.runs.listing import PPO
from workbench.kit.axes import Axis, Window, moving_average, number_text, scale_of, tick_texts
from workbench.kit.glyphs import bar
from workbench.run.history import Bucket, MetricHistory
from workbench.run.metrics import MAIN, METRICS_OF_KIND, Metric
from workbench.run.view import RunView
from workbench.text import MISSING, Line, line_of, plain

LIMIT = "┄"
_VALUE = 7  # columns at most, without the sign of a value past its limit
_LEAST_VALUE = 5
_CHANGE = 9
_LEAST_SPARK = 8  # columns, before the change gets any


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

    height: int  # of several lines, the numbers are on the first and the sparkline is below them
    numbers: int  # columns of label, unit and value, which ends there
    change: int  # columns: 0, 1 for the arrow, or enough for the number too
    spark: int  # columns
    spark_at: int  # the first of these columns


class MetricValue(NamedTuple):
    """A value in the shown unit, and its change from the previous iteration; NaN if there is none."""

    value: float
    change: float


def metrics_of(view: RunView, chosen: Sequence[Metric]) -> tuple[Metric, ...]:
    """Return the metrics to show: of a PPO run the informative ones of `chosen`, of other kinds all informative ones.

    Those that have a large chart come first. The KL has its target as threshold. All of `chosen` are shown before the
    first iteration, or if none is informative.
    """
    history, first = view.history, MAIN[view.history.kind]
    if history.kind != PPO:
        shown = tuple(metric for metric in METRICS_OF_KIND[history.kind] if is_informative(history, metric))
    else:
        shown = tuple(metric for metric in chosen if is_informative(history, metric)) or tuple(chosen)
        if (target := view.kl_target) is not None and target > 0:
            shown = tuple(m._replace(threshold=target, aimed=True) if m.field == "kl" else m for m in shown)
    return tuple(sorted(shown, key=lambda m: first.index(m.field) if m.field in first else len(first)))


def is_informative(history: MetricHistory, metric: Metric) -> bool:
    """Return whether the run records `metric` and it changes, as far as it is shown only then."""
    if not len(history) or not (metric.optional or metric.if_varied):
        return True
    low, high = history.range_of(metric.field)
    return not math.isnan(low) and not (metric.if_varied and low == high)


def cell_shape(charted: Charted, metrics: Sequence[Metric], width: int, height: int) -> CellShape:
    """Return the shape of cells of `width` columns and `height` lines that hold `metrics`."""
    numbers = max(
        len(f"{metric.label} {metric.unit}".rstrip())
        + 1
        + max(len(_value_text(reading_at(charted, metric), metric)), _LEAST_VALUE)
        for metric in metrics
    )
    least = 0 if height > 1 else _LEAST_SPARK
    room = width - 1 - numbers - (1 + least if least else 0)
    change = _CHANGE if room > _CHANGE + least else int(room > 1)
    start = 1 if height > 1 else 2 + numbers + bool(change) + change
    return CellShape(height, numbers, change, max(width - start - (height > 1), 0), start)


def reading_at(charted: Charted, metric: Metric) -> MetricValue:
    """Return the value of `metric` at the cursor, or the newest one without a cursor."""
    values = charted.window.history.column(metric.field)
    at = len(values) - 1 if charted.at is None else charted.at
    if not 0 <= at < len(values):
        return MetricValue(math.nan, math.nan)
    value = values[at] * metric.factor
    return MetricValue(value, value - values[at - 1] * metric.factor if at else math.nan)


def metric_cell(
    charted: Charted, metric: Metric, width: int, shape: CellShape, *, selected: bool = False
) -> list[Line]:
    """Return the `shape.height` lines of a cell, each of `width` columns."""
    columns = charted.window.columns(metric, shape.spark)
    values = moving_average(columns) if charted.average else [math.nan if c is None else c.mean for c in columns]
    scale = scale_of(zip(values, values, strict=True), metric, log=charted.log)
    here = -1 if charted.iteration is None else charted.window.column_of(charted.iteration, len(columns))
    places = [place * len(columns) // max(shape.spark, 1) for place in range(shape.spark if columns else 0)]
    is_tall = shape.height > 1
    spark = metric_bars(
        [columns[place] for place in places],
        [values[place] for place in places],
        scale,
        metric,
        height=shape.height - is_tall,
        cursor={column for column, place in enumerate(places) if place == here},
    )
    lines = [_numbers(reading_at(charted, metric), metric, shape, selected=selected)]
    left = width - len(plain(lines[0]))
    if is_tall:
        ends = [10.0 ** min(end, 308) for end in scale[:2]] if scale.log else scale[:2]
        limits = " … ".join(tick_texts([float(f"{end:.2g}") for end in ends]))
        text = limits if metric.threshold is None else f"{LIMIT} {metric.threshold:g}"
        role = "muted" if metric.threshold is None else "target"
        lines[0].append((text.rjust(left - 1) if len(text) < left - 1 else "", role))
        lines += [[(" ", "text"), *line] for line in spark]
    else:
        lines[0] += [(" " * (shape.spark_at - width + left), "text"), *spark[0]]
    return [[*line, (" " * (width - len(plain(line))), "text")] for line in lines]


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
        role = "target" if metric.beyond(value) else "bar"
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


def _value_text(reading: MetricValue, metric: Metric) -> str:
    """Return the value after ! if it is past the threshold, which is then also visible without colour."""
    return ("!" if metric.beyond(reading.value) else "") + number_text(reading.value, metric.digits, _VALUE)


def _numbers(reading: MetricValue, metric: Metric, shape: CellShape, *, selected: bool) -> Line:
    text = _value_text(reading, metric)
    role = "missing" if not math.isfinite(reading.value) else "target" if text.startswith("!") else "strong"
    name = f"{metric.label} {metric.unit}".rstrip()
    line: Line = [
        ("▸" if selected else " ", "selected"),
        (metric.label, "selected" if selected else "text"),
        (name[len(metric.label) :], "muted"),
        (text.rjust(shape.numbers - len(name)), role),
    ]
    if shape.change:
        line.append((" " + change_text(reading.change, metric.digits, shape.change).ljust(shape.change), "muted"))
    return line
