"""Enlarged chart of one metric, drawn in braille dots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from workbench.columns import fit_end
from workbench.kit.drawing import OVERLAYS, ROLES, Drawn, component_classes
from workbench.kit.glyphs import DOTS_ACROSS, DOTS_DOWN, Canvas
from workbench.kit.lines import MISSING, Line, Piece, line_of
from workbench.kit.scale import Axis, number_text, scale_of, tick_texts, ticks
from workbench.kit.window import Window, moving_average
from workbench.run.history import Bucket, History
from workbench.run.metrics import Metric
from workbench.run.view import Mark
from workbench.text import visible
from workbench.training.metric_list import LIMIT, Charted, change_text, reading_at
from workbench.training.timeline import sign_of

Points = list[tuple[int, Bucket]]  # dots of the x axis and their values

LETTERS = "abcde"[:OVERLAYS]  # of the other runs, in the legend and at the ends of their lines
_LABELS = 8  # columns of the y axis's numbers
_LINES_A_TICK = 4
_COLUMNS_A_TICK = 12
_RANKS = ("checkpoint", "evaluation", "resumed", "end", "setting", "alert", "decision", "alarm", "rollback")
"""Kinds of marks by ascending rank. Where marks meet, the highest rank is shown; an error outranks every kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What the chart shows of one metric. others: names and histories of at most five other runs."""

    charted: Charted
    metric: Metric
    marks: Sequence[Mark] = ()
    others: Sequence[tuple[str, History]] = ()


def braille_chart(picture: Picture, width: int, height: int) -> list[Line]:
    """Return the chart as `height` lines of at most `width` columns: title, plot, iteration axis, marks, legend.

    Reads two buckets per column of the plot for each run, however long the run is.
    """
    charted, metric = picture.charted, picture.metric
    across = max(width - _LABELS - 4, 1)  # leaves a column for the letters at the ends of lines
    down = max(height - 4 - bool(picture.others), 1)
    windows = [charted.window, *(charted.window.beside(history) for _, history in picture.others)]
    series = [window.points(metric, DOTS_ACROSS * across) for window in windows]
    scale = scale_of(((bucket.low, bucket.high) for points in series for _, bucket in points), metric, log=charted.log)
    labels = _tick_rows(scale, down)
    plot = _plot(picture, windows, series, scale, across, down)
    return [
        _title(picture, series[0], width),
        *(
            [(labels.get(row, "").rjust(_LABELS + 1), "muted"), ("┤" if row in labels else "│", "axis"), *cells]
            for row, cells in enumerate(plot)
        ),
        *_iteration_axis(charted.window, across),
        _mark_line(picture.marks, charted.window, across),
        *([_legend(picture.others, width)] if picture.others else []),
    ][:height]


def _plot(
    picture: Picture, windows: Sequence[Window], series: Sequence[Points], scale: Axis, across: int, down: int
) -> list[Line]:
    """Return the plot: the lines of all runs, a letter at the end of each other run, and what lies behind them."""
    canvas = Canvas(across, down)
    for number, (window, points) in reversed(list(enumerate(zip(windows, series, strict=True)))):
        _draw(canvas, window, points, [bucket.mean for _, bucket in points], scale, _role(number), spread=not number)
    if picture.charted.average:
        averages = moving_average(bucket for _, bucket in series[0])
        _draw(canvas, windows[0], series[0], averages, scale, "ema", spread=False)
    rows = canvas.rows()
    threshold = picture.metric.threshold
    if threshold is not None and scale.holds(threshold):
        row = _row(scale.position(threshold), down)
        rows[row] = [(LIMIT, "target") if cell == " " else (cell, role) for cell, role in rows[row]]
    if (iteration := picture.charted.iteration) is not None:
        column = _place(windows[0], iteration, across)
        for row_cells in rows:
            cell, _ = row_cells[column]
            row_cells[column] = ("│" if cell in (" ", LIMIT) else cell, "cursor")
    for x, bucket in series[0]:
        if bucket.missing:
            rows[-1][x // DOTS_ACROSS] = (MISSING, "missing")
    plot = [[*cells, (" ", "text")] for cells in rows]  # a column for letters of lines that reach the right edge
    for number, points in enumerate(series[1:]):
        _put_letter(plot, number, points, scale)
    return [line_of(cells) for cells in plot]


def _draw(
    canvas: Canvas, window: Window, points: Points, values: Sequence[float], scale: Axis, role: str, *, spread: bool
) -> None:
    """Draw a line through `values`, with gaps where iterations are missing.

    spread: also draw each bucket from its least to its greatest value.
    """
    numbers, top = window.history.numbers, canvas.height * DOTS_DOWN - 1
    before: tuple[int, int] | None = None
    follows = -1  # the iteration that continues the line
    for (x, bucket), value in zip(points, values, strict=True):
        if math.isnan(value):
            before = None
            continue
        here = (x, round((1 - scale.position(value)) * top))
        joined = before if before is not None and numbers[bucket.first_index] == follows else here
        canvas.line(joined, here, role)
        if spread:
            high, low = (round((1 - scale.position(end)) * top) for end in (bucket.high, bucket.low))
            canvas.column(x, high, low, role)
        before, follows = here, numbers[bucket.last_index] + 1


def _put_letter(plot: list[list[Piece]], number: int, points: Points, scale: Axis) -> None:
    """Put the letter of another run at the end of its line, or on the nearest free row there."""
    end = next(((x, bucket.mean) for x, bucket in reversed(points) if not math.isnan(bucket.mean)), None)
    if end is None:
        return
    column, wanted = end[0] // DOTS_ACROSS + 1, _row(scale.position(end[1]), len(plot))
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
        pieces.append((f"   {LIMIT} {'target' if metric.aimed else 'limit'} {metric.threshold:g}", "target"))
    if charted.average and points:
        averages = moving_average(
            bucket for _, bucket in points if charted.at is None or bucket.first_index <= charted.at
        )
        if averages:
            pieces.append((f"   EMA {number_text(averages[-1], metric.digits, 9)}", "ema"))
    if charted.log:
        pieces.append(("   log scale" if metric.log else "   no log scale for this metric", "muted"))
    return _fitting(pieces, width)


def _tick_rows(scale: Axis, down: int) -> dict[int, str]:
    """Return the numbers of the y axis, keyed by row."""
    values = ticks(scale, max(down // _LINES_A_TICK, 1))
    texts = tick_texts(values, log=scale.log)
    return {_row(scale.position(value), down): text for value, text in zip(values, texts, strict=True)}


def _iteration_axis(window: Window, across: int) -> list[Line]:
    """Return the x axis and, below it, the iterations."""
    line, labels = ["─"] * across, [" "] * (across + 4)
    free_from = 0
    if window.iterations:
        marked = [window.first, *ticks(Axis(window.first, window.last), max(across // _COLUMNS_A_TICK, 1))]
        for number in sorted({math.ceil(value) for value in marked}):
            text, column = str(number), _place(window, number, across)
            start = max(column - len(text) // 2, 0)
            if start >= free_from and start + len(text) <= len(labels):
                line[column] = "┬"
                labels[start : start + len(text)] = text
                free_from = start + len(text) + 2
    indent = " " * (_LABELS + 1)
    return [[(indent, "text"), ("└" + "".join(line), "axis")], [(indent + " " + "".join(labels).rstrip(), "muted")]]


def _mark_line(marks: Sequence[Mark], window: Window, across: int) -> Line:
    """Return the line of marks, each below its iteration."""
    cells: list[Piece] = [(" ", "text")] * across
    ranks = [-1] * across
    for mark in marks:
        rank = _RANKS.index(mark.kind) if mark.level != "error" else len(_RANKS)
        if window.iterations and window.first <= mark.iteration <= window.last:
            column = _place(window, mark.iteration, across)
            if rank >= ranks[column]:
                ranks[column] = rank
                cells[column] = sign_of(mark)
    return [(" " * (_LABELS + 2), "text"), *line_of(cells)]


def _legend(others: Sequence[tuple[str, History]], width: int) -> Line:
    pieces: Line = [(" ─ this run", _role(0))]
    room = (width - len(pieces[0][0])) // len(others) - 4
    for number, (name, _) in enumerate(others):
        pieces.append((f"  {LETTERS[number]} {fit_end(visible(name), room)}", _role(number + 1)))
    return pieces


def _fitting(pieces: Line, width: int) -> Line:
    """Return the pieces that fit into `width` columns, in order."""
    line: Line = []
    for text, role in pieces:
        if len(text) <= width:
            line.append((text, role))
            width -= len(text)
    return line


def _place(window: Window, iteration: int, across: int) -> int:
    """Return the column of an iteration: that of the dot at which its value is drawn."""
    dots = DOTS_ACROSS * across
    return round((iteration - window.first) / max(window.last - window.first, 1) * (dots - 1)) // DOTS_ACROSS


def _row(position: float, down: int) -> int:
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
