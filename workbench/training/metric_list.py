"""List of the metrics of a run, a row each with its value, its change and its sparkline, and the choice of its rows."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import ClassVar, NamedTuple

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.widgets import SelectionList, Static
from textual.widgets.selection_list import Selection

from trainer.runs.listing import PPO
from workbench.columns import fit_start
from workbench.kit.dialog import Dialog
from workbench.kit.drawing import Drawn, component_classes
from workbench.kit.glyphs import bar
from workbench.kit.lines import MISSING, Line, Piece, line_of
from workbench.kit.scale import Axis, number_text, scale_of, tick_texts
from workbench.kit.window import Window, moving_average, window_of
from workbench.run.history import Bucket, History
from workbench.run.metrics import DEFAULT, METRICS, METRICS_OF_KIND, Metric
from workbench.run.view import RunView

LIMIT = "┄"
_NAME, _VALUE, _CHANGE = 16, 8, 9  # columns
_NUMBERS = 1 + _NAME + _VALUE + 1  # all but the change, with the spaces between
_SPACE = 2  # columns before the sparkline
STACKED_BELOW = 64  # columns: in a narrower pane, a sparkline is below its numbers
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


class RowShape(NamedTuple):
    """Places of the parts of a row; the same for all rows, so that their columns are aligned."""

    height: int
    stacked: bool  # the sparkline is under the numbers
    change: int  # columns: at least enough for the arrow
    spark: int  # columns
    spark_at: int  # the first of these columns
    spark_height: int
    limit: int  # columns for the threshold to the right of the sparkline


class Reading(NamedTuple):
    """A value in the shown unit, and its change from the previous iteration; NaN if there is none."""

    value: float
    change: float


def row_shape(width: int, height: int) -> RowShape:
    """Return the shape of rows of `width` columns and `height` lines."""
    if height > 1 and width < STACKED_BELOW:
        return RowShape(height, True, _CHANGE, max(width - 2, 0), 1, height - 1, 0)
    change = _CHANGE if width >= STACKED_BELOW - 8 else 1
    left = _NUMBERS + change + _SPACE
    room = max(width - left - 1, 0)
    limit = _LIMIT if room - _LIMIT >= _LIMIT_FROM else 0
    return RowShape(height, False, change, room - limit, left, height - (height > 2), limit)


def reading_at(charted: Charted, metric: Metric) -> Reading:
    """Return the value of `metric` at the cursor, or the newest one without a cursor."""
    values = charted.window.history.column(metric.field)
    at = len(values) - 1 if charted.at is None else charted.at
    if not 0 <= at < len(values):
        return Reading(math.nan, math.nan)
    value = values[at] * metric.factor
    return Reading(value, value - values[at - 1] * metric.factor if at else math.nan)


def metric_row(charted: Charted, metric: Metric, width: int, shape: RowShape, *, selected: bool = False) -> list[Line]:
    """Return the `shape.height` lines of a row."""
    columns = charted.window.columns(metric, shape.spark)
    values = moving_average(columns) if charted.average else [math.nan if c is None else c.mean for c in columns]
    scale = scale_of(zip(values, values, strict=True), metric, log=charted.log)
    cursor = None if charted.iteration is None else charted.window.column_of(charted.iteration, len(columns))
    spark = metric_bars(columns, values, scale, metric, height=shape.spark_height, cursor=cursor)
    numbers = _numbers(reading_at(charted, metric), metric, shape.change, selected=selected)
    if shape.stacked:
        return [
            [*numbers, _end(metric, scale, width - 1 - _NUMBERS - shape.change)],
            *([_gap(1), *line] for line in spark),
        ]
    heads = [[*numbers, _gap(_SPACE)], _beneath(scale, shape.spark_at), *[[_gap(shape.spark_at)]] * shape.height]
    lines = [[*head, *drawn] for head, drawn in zip(heads, [*spark, *[[]] * (shape.height - len(spark))], strict=False)]
    if shape.limit and metric.threshold is not None:
        lines[0] += [_gap(shape.spark - len(columns) + 1), _limit(metric)]
    return lines


def metric_bars(
    columns: Sequence[Bucket | None],
    values: Sequence[float],
    scale: Axis,
    metric: Metric,
    *,
    height: int = 1,
    cursor: int | None = None,
) -> list[Line]:
    """Return `height` lines with `values` as bars, one cell a column.

    × marks a bucket that lacks a number; a bucket that is None leaves a gap. Bars beyond the metric's threshold have
    the role of the threshold, which is drawn where it crosses no bar. No bar reaches the top of its line, so that rows
    stay apart.
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
        if place == cursor:
            stack = [(cell if cell != " " else "│", "cursor") for cell, _ in stack]
        stacks.append(stack)
    return [line_of(stack[level] for stack in stacks) for level in reversed(range(height))]


def change_text(change: float, digits: int, width: int) -> str:
    """Return ▲ or ▼ and, if it fits, the size of the change; = if the digits show none, nothing if it is not finite."""
    if not math.isfinite(change):
        return ""
    size = number_text(abs(change), digits, max(width - 2, 7))
    if not size.strip("0."):
        return "="
    arrow = "▲" if change > 0 else "▼"
    return f"{arrow} {size}" if len(size) + 2 <= width else arrow


def _numbers(reading: Reading, metric: Metric, change: int, *, selected: bool) -> Line:
    value = number_text(reading.value, metric.digits, _VALUE - 1)
    sign = "!" if metric.beyond(reading.value) else " "  # past the threshold, also visible without colour
    role = "missing" if not math.isfinite(reading.value) else "target" if sign == "!" else "strong"
    unit = f" {metric.unit}" if metric.unit else ""
    return [
        ("▸" if selected else " ", "selected"),
        (metric.label, "selected" if selected else "text"),
        (unit.ljust(_NAME - len(metric.label)), "muted"),
        ((sign + value).rjust(_VALUE), role),
        (" " + change_text(reading.change, metric.digits, change).ljust(change), "muted"),
    ]


def _end(metric: Metric, scale: Axis, width: int) -> Piece:
    """Return the threshold, or else the ends of the axis, for the place right of the numbers; empty if too wide."""
    text, role = (_range(scale, width), "muted") if metric.threshold is None else _limit(metric)
    return (text.rjust(width) if len(text) <= width else "", role)


def _beneath(scale: Axis, width: int) -> Line:
    """Return the ends of the axis, for the line below the value."""
    return [_gap(1 + _NAME), (_range(scale, width - _NAME - 3).rjust(width - _NAME - 3), "muted"), _gap(_SPACE)]


def _range(scale: Axis, width: int) -> str:
    ends = [10.0 ** min(end, 308) for end in scale[:2]] if scale.log else list(scale[:2])
    low, high = tick_texts([float(f"{end:.2g}") for end in ends])
    text = f"{low} … {high}"
    return text if len(text) <= width else ""


def _limit(metric: Metric) -> Piece:
    return (f"{LIMIT} {metric.threshold:g}", "target")


def _gap(width: int) -> Piece:
    return (" " * max(width, 0), "text")


class MetricList(Drawn, can_focus=True):
    """Widget that draws the rows that fit, including the selected one, below a line with the iterations they show."""

    COMPONENT_CLASSES: ClassVar[set[str]] = component_classes(
        "text", "strong", "muted", "series", "target", "missing", "cursor", "selected"
    )
    _charted = Charted(window=window_of(History()))
    _metrics: Sequence[Metric] = ()
    _selected = 0
    _row_height = 1
    _top = 0  # the first visible row
    _empty = ""

    class Picked(Message):
        """Posted when a row is clicked. iteration: the one under the mouse, None outside the sparkline."""

        def __init__(self, row: int, iteration: int | None) -> None:
            super().__init__()
            self.row = row
            self.iteration = iteration

    def show(self, charted: Charted, metrics: Sequence[Metric], selected: int, *, row_height: int, empty: str) -> None:
        """Replace the rows by those of `metrics`. empty: the text to show before the first iteration."""
        self._charted, self._metrics, self._selected = charted, metrics, selected
        self._row_height, self._empty = row_height, empty
        self.redraw()

    def draw(self, width: int, height: int) -> list[Line]:
        charted, shape = self._charted, row_shape(width, self._row_height)
        if not len(charted.window.history):
            return [[], *([(f" {line}", "muted")] for line in wrap(self._empty, max(width - 2, 1)))]
        rows = max((height - 1) // shape.height, 1)
        self._top = min(max(self._top, self._selected - rows + 1, 0), self._selected)
        lines = [heading(charted, shape, width)]
        for number, metric in enumerate(self._metrics[self._top : self._top + rows], self._top):
            lines += metric_row(charted, metric, width, shape, selected=number == self._selected)
        return lines

    def on_click(self, event: Click) -> None:
        shape = row_shape(self.size.width, self._row_height)
        row = self._top + (event.y - 1) // shape.height
        if event.y < 1 or row >= len(self._metrics):
            return
        window = self._charted.window
        drawn = min(shape.spark, window.iterations)
        column = event.x - shape.spark_at
        on_spark = 0 <= column < drawn and not (shape.stacked and (event.y - 1) % shape.height == 0)
        self.post_message(self.Picked(row, window.iteration_in(column, drawn) if on_spark else None))


def heading(charted: Charted, shape: RowShape, width: int) -> Line:
    """Return the line above the rows: the iterations, how they are drawn, and the cursor above the sparklines."""
    window = charted.window
    drawn = f"iterations {window.first}–{window.last}"
    words = [drawn if charted.iteration is None else f"iteration {charted.iteration} of {window.history.numbers[-1]}"]
    words += ["EMA"] if charted.average else []
    words += ["log"] if charted.log else []
    text = " " + " · ".join(words)
    if charted.iteration is None:
        return [(fit_start(text, width), "muted")]
    column = shape.spark_at + window.column_of(charted.iteration, min(shape.spark, window.iterations))
    if len(text) < column < width:
        return [(text.ljust(column), "muted"), ("▾", "cursor")]
    if column + 1 + len(text) <= width:
        return [(" " * column, "text"), ("▾", "cursor"), (text, "muted")]
    return [(fit_start(text, width), "muted")]


def metrics_of(view: RunView, chosen: Sequence[Metric]) -> tuple[Metric, ...]:
    """Return the metrics that have a row: of a PPO run the informative ones of `chosen`, of other kinds all.

    The KL has its target as threshold. All of `chosen` have a row before the first iteration, or if none is
    informative.
    """
    history = view.history
    if history.kind != PPO:
        return METRICS_OF_KIND[history.kind]
    return tuple(_aimed(metric, view.kl_target) for metric in chosen if _is_informative(history, metric)) or tuple(
        chosen
    )


def hidden_metrics(view: RunView, chosen: Sequence[Metric]) -> int:
    """Return how many informative default metrics of a PPO run are not `chosen`; 0 for other kinds."""
    history = view.history
    if history.kind != PPO:
        return 0
    return sum(_is_informative(history, metric) for metric in DEFAULT if metric not in chosen)


def _is_informative(history: History, metric: Metric) -> bool:
    if not len(history) or not (metric.optional or metric.if_varied):
        return True
    low, high = history.range_of(metric.field)
    return not math.isnan(low) and not (metric.if_varied and low == high)


def _aimed(metric: Metric, kl_target: float | None) -> Metric:
    return metric._replace(threshold=kl_target, aimed=True) if kl_target and metric.field == "kl" else metric


class ChooseMetricsScreen(Dialog[tuple[str, ...]]):
    """Dialog that returns the fields of the metrics to show, in the order of the table; empty for the default ones."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "close", id="metrics.close", tooltip="Show the chosen metrics"),
    ]

    def __init__(self, shown: Collection[str]) -> None:
        super().__init__()
        self._shown = shown

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Metrics to show", markup=False, classes="question")
            yield SelectionList[str](
                *(Selection(Content(metric.label), metric.field, metric.field in self._shown) for metric in METRICS)
            )
            hidden = "Metrics that this run does not record, or that never change, are hidden."
            keys = self.hint(("space", "shows or hides one"), ("metrics.close", "closes"))
            yield Static(Content.assemble(hidden, "\n", keys), classes="detail")

    def action_close(self) -> None:
        chosen = set(self.query_one(SelectionList).selected)
        self.dismiss(tuple(metric.field for metric in METRICS if metric.field in chosen))
