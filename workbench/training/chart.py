"""Line chart of one metric, drawn in braille dots: its curves, and the chart that is enlarged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from workbench.kit.axes import Axis, Window, moving_average, number_text, scale_of, tick_texts, ticks
from workbench.kit.drawing import OVERLAYS, ROLES, Drawn, component_classes
from workbench.kit.glyphs import DOTS_ACROSS, DOTS_DOWN, Canvas
from workbench.run.history import Bucket, History
from workbench.run.metrics import Metric
from workbench.run.view import Mark
from workbench.text import MISSING, Line, Piece, fit_end, line_of, visible
from workbench.training.metric_grid import LIMIT, Charted, change_text, reading_at
from workbench.training.timeline import sign_of

Points = list[tuple[int, Bucket]]  # dots of the x axis and their values

LETTERS = "abcde"[:OVERLAYS]  # of the other runs, in the legend and at the ends of their lines
LABELS = 8  # columns of the y axis's numbers
_LINES_A_TICK = 4
COLUMNS_A_TICK = 12
_RANKS = ("checkpoint", "evaluation", "resumed", "end", "setting", "alert", "decision", "alarm", "rollback")
"""Kinds of marks by ascending rank. Where marks meet, the highest rank is shown; an error outranks every kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Values that the chart draws of one metric. others: names and histories of at most five other runs."""

    charted: Charted
    metric: Metric
    marks: Sequence[Mark] = ()
    others: Sequence[tuple[str, History]] = ()


def braille_chart(picture: Picture, width: int, height: int) -> list[Line]:
    """Return the enlarged chart as at most `height` lines of at most `width` columns.

    They are title, plot, iteration axis, marks and legend. Reads two buckets per column of the plot for each run,
    however long the run is.
    """
    across = max(width - LABELS - 4, 1)  # leaves a column for the letters at the ends of lines
    down = max(height - 4 - bool(picture.others), 1)
    curves = curves_of(picture, across)
    labels = tick_rows(curves.scale, down, max(down // _LINES_A_TICK, 1))
    plot = [[*cells, (" ", "text")] for cells in plot_cells(picture, curves, across, down)]  # a column for letters
    for number, points in enumerate(curves.series[1:]):
        _put_letter(plot, number, points, curves.scale)
    return [
        _title(picture, curves.series[0], width),
        *(
            [
                (labels.get(row, "").rjust(LABELS + 1), "muted"),
                ("┤" if row in labels else "│", "axis"),
                *line_of(cells),
            ]
            for row, cells in enumerate(plot)
        ),
        *_iteration_axis(picture.charted.window, across),
        _mark_line(picture.marks, picture.charted.window, across),
        *([_legend(picture.others, width)] if picture.others else []),
    ][:height]


class Curves(NamedTuple):
    """The lines of a plot: the run on the screen first. edges: the deviation at each point of it."""

    windows: Sequence[Window]
    series: Sequence[Points]
    edges: Sequence[float]
    scale: Axis


def curves_of(picture: Picture, across: int) -> Curves:
    """Return the curves of a plot of `across` columns, on an axis that holds them and the spread of the batch."""
    charted, metric = picture.charted, picture.metric
    windows = [charted.window, *(charted.window.beside(history) for _, history in picture.others)]
    series = [window.points(metric, DOTS_ACROSS * across) for window in windows]
    edges: list[float] = []
    if metric.spread and metric.spread in charted.window.history.names:
        deviations = charted.window.points(metric._replace(field=metric.spread), DOTS_ACROSS * across)
        edges = [bucket.mean for _, bucket in deviations]
    ranges = [(bucket.low, bucket.high) for points in series for _, bucket in points]
    ranges += [
        (bucket.mean - edge, bucket.mean + edge)
        for (_, bucket), edge in zip(series[0], edges, strict=bool(edges))
        if math.isfinite(edge)
    ]
    return Curves(windows, series, edges, scale_of(ranges, metric, log=charted.log))


def plot_cells(picture: Picture, curves: Curves, across: int, down: int) -> list[list[Piece]]:
    """Return the cells of the plot: the lines of all runs, and what lies behind them."""
    canvas, scale = Canvas(across, down), curves.scale
    windows, series = curves.windows, curves.series
    if curves.edges:
        for side in (-1, 1):
            ends = [bucket.mean + side * edge for (_, bucket), edge in zip(series[0], curves.edges, strict=True)]
            _dot(canvas, windows[0], series[0], ends, scale)
    for number, (window, points) in reversed(list(enumerate(zip(windows, series, strict=True)))):
        _draw(canvas, window, points, [bucket.mean for _, bucket in points], scale, _role(number), spread=not number)
    if picture.charted.average:
        averages = moving_average(bucket for _, bucket in series[0])
        _draw(canvas, windows[0], series[0], averages, scale, "ema", spread=False)
    rows = canvas.rows()
    threshold = picture.metric.threshold
    if threshold is not None and scale.holds(threshold):
        row = row_of(scale.position(threshold), down)
        rows[row] = [(LIMIT, "target") if cell == " " else (cell, role) for cell, role in rows[row]]
    if (iteration := picture.charted.iteration) is not None:
        column = column_of(windows[0], iteration, across)
        for row_cells in rows:
            cell, _ = row_cells[column]
            row_cells[column] = ("│" if cell in (" ", LIMIT) else cell, "cursor")
    for x, bucket in series[0]:
        if bucket.missing:
            rows[-1][x // DOTS_ACROSS] = (MISSING, "missing")
    return rows


def _joined(window: Window, points: Points, values: Sequence[float], scale: Axis, top: int) -> Iterator[_Step]:
    """Yield a step to each value that is a number, from the one before it if no iteration between them is missing."""
    numbers = window.history.numbers
    before: tuple[int, int] | None = None
    follows = -1  # the iteration that continues the line
    for (x, bucket), value in zip(points, values, strict=True):
        if math.isnan(value):
            before = None
            continue
        here = (x, round((1 - scale.position(value)) * top))
        yield _Step(before if before is not None and numbers[bucket.first_index] == follows else here, here, bucket)
        before, follows = here, numbers[bucket.last_index] + 1


class _Step(NamedTuple):
    """A part of a line, in dots."""

    start: tuple[int, int]
    end: tuple[int, int]
    bucket: Bucket


def _dot(canvas: Canvas, window: Window, points: Points, values: Sequence[float], scale: Axis) -> None:
    """Draw a dotted line through `values`, as far as they are on the axis."""
    kept = [value if math.isfinite(value) and scale.holds(value) else math.nan for value in values]
    for step in _joined(window, points, kept, scale, canvas.height * DOTS_DOWN - 1):
        (x, y), (end_x, end_y) = step.start, step.end
        for at in range(x, end_x + 1):
            if at % DOTS_ACROSS == 0 or x == end_x:
                height = y + round((end_y - y) * (at - x) / max(end_x - x, 1))
                canvas.column(at, height, height, "axis")


def _draw(
    canvas: Canvas, window: Window, points: Points, values: Sequence[float], scale: Axis, role: str, *, spread: bool
) -> None:
    """Draw a line through `values`, with gaps where iterations are missing.

    spread: behind the line, draw each bucket from its least to its greatest value.
    """
    top = canvas.height * DOTS_DOWN - 1
    steps = list(_joined(window, points, values, scale, top))
    for step in steps if spread else ():
        if step.bucket.low < step.bucket.high:
            high, low = (round((1 - scale.position(end)) * top) for end in (step.bucket.high, step.bucket.low))
            canvas.column(step.end[0], high, low, "axis")
    for step in steps:
        canvas.line(step.start, step.end, role)


def _put_letter(plot: list[list[Piece]], number: int, points: Points, scale: Axis) -> None:
    """Put the letter of another run at the end of its line, or on the nearest free row there."""
    end = next(((x, bucket.mean) for x, bucket in reversed(points) if not math.isnan(bucket.mean)), None)
    if end is None:
        return
    column, wanted = end[0] // DOTS_ACROSS + 1, row_of(scale.position(end[1]), len(plot))
    free = [row for row, cells in enumerate(plot) if cells[column][0] in (" ", LIMIT)]
    if free:
        plot[min(free, key=lambda row: abs(row - wanted))][column] = (LETTERS[number], _role(number + 1))


def _title(picture: Picture, points: Points, width: int) -> Line:
    """Return the title: the metric and its value at the cursor."""
    charted, metric = picture.charted, picture.metric
    reading = reading_at(charted, metric)
    numbers = charted.window.history.numbers
    pieces: Line = [(f" {metric.label}", "strong"), (f" {metric.unit}" if metric.unit else "", "muted")]
    if len(numbers):
        pieces.append((f"   iteration {numbers[-1 if charted.at is None else charted.at]}  ", "muted"))
        pieces.append((number_text(reading.value, metric.digits, 9), "strong"))
        pieces.append((" " + change_text(reading.change, metric.digits, 10), "muted"))
    if metric.threshold is not None:
        pieces.append((f"   {threshold_text(metric)}", "target"))
    if charted.average and points:
        averages = moving_average(
            bucket for _, bucket in points if charted.at is None or bucket.first_index <= charted.at
        )
        if averages:
            pieces.append((f"   EMA {number_text(averages[-1], metric.digits, 9)}", "ema"))
    if charted.log:
        pieces.append(("   log scale" if metric.log else "   no log scale for this metric", "muted"))
    return fitting(pieces, width)


def threshold_text(metric: Metric) -> str:
    """Return the threshold in words: `limit 10`, or `target 8`."""
    return f"{LIMIT} {'target' if metric.aimed else 'limit'} {metric.threshold:g}"


def tick_rows(scale: Axis, down: int, count: int) -> dict[int, str]:
    """Return about `count` numbers of the y axis, keyed by row."""
    values = ticks(scale, count)
    if values[:1] == [scale.low] and len(values) <= 2:  # the ends, which are not round
        span = values[-1] - values[0]
        digits = 1 - math.floor(math.log10(span)) if 1e-6 < span < 1e6 and not scale.log else 9
        values = [round(value, digits) for value in values]
    texts = tick_texts(values, log=scale.log)
    return {row_of(scale.position(value), down): text for value, text in zip(values, texts, strict=True)}


def _iteration_axis(window: Window, across: int) -> list[Line]:
    """Return the x axis and, below it, the iterations."""
    line, labels = ["─"] * across, [" "] * (across + 4)
    free_from = 0
    if window.iterations:
        marked = [window.first, *ticks(Axis(window.first, window.last), max(across // COLUMNS_A_TICK, 1))]
        for number in sorted({math.ceil(value) for value in marked}):
            text, column = str(number), column_of(window, number, across)
            start = max(column - len(text) // 2, 0)
            if start >= free_from and start + len(text) <= len(labels):
                line[column] = "┬"
                labels[start : start + len(text)] = text
                free_from = start + len(text) + 2
    indent = " " * (LABELS + 1)
    return [[(indent, "text"), ("└" + "".join(line), "axis")], [(indent + " " + "".join(labels).rstrip(), "muted")]]


def _mark_line(marks: Sequence[Mark], window: Window, across: int) -> Line:
    """Return the line of marks, each below its iteration."""
    cells: list[Piece] = [(" ", "text")] * across
    ranks = [-1] * across
    for mark in marks:
        rank = _RANKS.index(mark.kind) if mark.level != "error" else len(_RANKS)
        if window.iterations and window.first <= mark.iteration <= window.last:
            column = column_of(window, mark.iteration, across)
            if rank >= ranks[column]:
                ranks[column] = rank
                cells[column] = sign_of(mark)
    return [(" " * (LABELS + 2), "text"), *line_of(cells)]


def _legend(others: Sequence[tuple[str, History]], width: int) -> Line:
    pieces: Line = [(" ─ this run", _role(0))]
    room = (width - len(pieces[0][0])) // len(others) - 4
    for number, (name, _) in enumerate(others):
        pieces.append((f"  {LETTERS[number]} {fit_end(visible(name), room)}", _role(number + 1)))
    return pieces


def fitting(pieces: Line, width: int) -> Line:
    """Return the pieces that fit into `width` columns, in order."""
    line: Line = []
    for text, role in pieces:
        if len(text) <= width:
            line.append((text, role))
            width -= len(text)
    return line


def column_of(window: Window, iteration: int, across: int) -> int:
    """Return the column of an iteration: that of the dot at which its value is drawn."""
    return window.place_of(iteration, DOTS_ACROSS * across) // DOTS_ACROSS


def row_of(position: float, down: int) -> int:
    """Return the row, counted from the top, of a position from 0 to 1 on the y axis."""
    return round((1 - position) * (DOTS_DOWN * down - 1)) // DOTS_DOWN


def _role(number: int) -> str:
    return f"run-{number}" if number else "series"


class MetricChart(Drawn, can_focus=True):
    """Enlarged chart of one metric. The pane handles the keys that move through it."""

    COMPONENT_CLASSES: ClassVar[set[str]] = component_classes(*ROLES)
    _picture: Picture | None = None

    def show(self, picture: Picture) -> None:
        self._picture = picture
        self.redraw()

    def draw(self, width: int, height: int) -> list[Line]:
        return braille_chart(self._picture, width, height) if self._picture else []
