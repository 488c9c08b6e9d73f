"""Line chart of one metric in braille dots: its title, its curves, their axes, and what is marked on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from rich.cells import cell_len

from workbench.kit.axes import Axis, Window, moving_average, number_text, scale_of, tick_rows, ticks
from workbench.kit.drawing import OVERLAYS
from workbench.kit.glyphs import DOTS_ACROSS, Canvas, dot_row, row_of, with_axis
from workbench.run.history import Bucket, MetricHistory
from workbench.run.metrics import MAIN, Metric
from workbench.run.view import Mark
from workbench.text import MISSING, Line, Piece, fit_end, line_of, plain, visible
from workbench.training.metric_grid import LIMIT, Charted, change_text, reading_at
from workbench.training.timeline import sign_of

DOT = "•"  # a single value
LETTERS = "abcde"[:OVERLAYS]  # of the other runs, in the legend and at the ends of their lines
_ROLES = ("policy", *(f"run-{number}" for number in range(1, OVERLAYS + 1)))
_SECOND = "reference"  # role of the second main metric, unless other runs are beside it
_SPREAD, _SPREAD_DECAY = "axis", 0.75  # a batch's own deviation is mostly noise
_CUT = "▾▴"  # a value below the axis, or above it
_LABELS = (4, 8)  # columns of the y axis's numbers: usually, and where they are long
_COLUMNS_A_TICK = 12
_COLUMNS_A_DOT = 6  # between single values that are marked
_RANKS = ("checkpoint", "evaluation", "resumed", "end", "setting", "alert", "decision", "alarm", "rollback")
"""Kinds of marks by ascending rank. Where marks meet, the highest rank is shown; an error outranks every kind."""


class _Curve(NamedTuple):
    """One run in the chart. points: dots of the x axis and their values."""

    window: Window
    points: Sequence[tuple[int, Bucket]]
    role: str

    def line(self, values: Iterable[float], scale: Axis) -> Iterator[tuple[int, float]]:
        """Yield the place of each value on the canvas, and a gap before it where iterations are missing."""
        numbers, follows = self.window.history.numbers, -1
        for (x, bucket), value in zip(self.points, values, strict=True):
            if numbers[bucket.first_index] != follows:
                yield x, math.nan
            yield x, scale.position(value)
            follows = numbers[bucket.last_index] + 1


def metric_chart(
    charted: Charted,
    metric: Metric,
    width: int,
    height: int,
    *,
    selected: bool = False,
    marks: Sequence[Mark] = (),
    others: Sequence[tuple[str, MetricHistory]] = (),
    enlarged: bool = True,
) -> tuple[list[Line], range]:
    """Return a chart as at most `height` lines of `width` columns, and the columns of its plot.

    They are title, plot, the iterations on their axis, and a line each for the names of other runs (at most five) and,
    in an enlarged chart, for marks, if there are any. Alarms are marked on the curve. Reads two buckets per column of
    the plot for each run, however long the run is.
    """
    down = max(height - 2 - (enlarged and bool(marks)) - bool(others), 1)
    is_second = metric.field == MAIN[charted.window.history.kind][1] and not others
    roles = (_SECOND if is_second else _ROLES[0], *_ROLES[1:])
    windows = [charted.window, *(charted.window.beside(history) for _, history in others)]
    for left in _LABELS:
        across = max(width - left - 1 - bool(others), 1)  # with a column for the letters at the ends of lines
        curves = [
            _Curve(window, window.points(metric, DOTS_ACROSS * across), role)
            for role, window in zip(roles, windows, strict=False)
        ]
        edges = [math.nan] * len(curves[0].points)  # a deviation of the batch, at each point of this run
        if metric.spread and metric.spread in charted.window.history.names:
            spread = metric._replace(field=metric.spread)
            points = charted.window.points(spread, DOTS_ACROSS * across)
            edges = moving_average((bucket for _, bucket in points), _SPREAD_DECAY)
        means = [bucket.mean for _, bucket in curves[0].points]
        ranges = [(bucket.low, bucket.high) for curve in curves for _, bucket in curve.points]
        ranges += [(mean - edge, mean + edge) for mean, edge in zip(means, edges, strict=True) if math.isfinite(edge)]
        scale = scale_of(ranges, metric, log=charted.log)
        labels = tick_rows(scale, down)
        if max(map(len, labels.values()), default=0) <= left:
            break
    limit = None
    if metric.threshold is not None and scale.holds(metric.threshold):
        limit = row_of(scale.position(metric.threshold), down)
        labels[limit] = f"{metric.threshold:g}"
    plot, is_named = _drawn(charted, metric, curves, edges, scale, limit, across, down)
    is_alarmed = _mark_plot(plot, charted, metric, curves[0], scale, marks)
    if others:
        plot = [[*cells, (" ", "text")] for cells in plot]
        for number, curve in enumerate(curves[1:]):
            _put_letter(plot, number, curve, scale)
    title = _title(charted, metric, curves[0], width, selected=selected, threshold=not is_named)
    legend: Line = []
    if not others and any(map(math.isfinite, edges)):
        legend = [("⠐⠐ spread", _SPREAD), ("  ⣀⡠⠤ mean", roles[0])]
    legend += [("  ⚠ alarm", "warning")] if is_alarmed else []
    if legend := fitting(legend, width - len(plain(title)) - 3):
        title += [(" " * (width - len(plain(title)) - len(plain(legend)) - 1), "text"), *legend]
    lines = [title, *with_axis(plot, labels, left)]
    if limit is not None:
        lines[1 + limit][0] = (lines[1 + limit][0][0], "target")
    lines.append([(" " * left, "text"), ("└", "axis"), *_iteration_axis(charted, across)])
    if enlarged and marks:
        lines.append([(" " * (left + 1), "text"), *_mark_line(marks, charted.window, across)])
    if others:
        legend = [(" ─ this run", _ROLES[0])]
        room = (width - len(legend[0][0])) // len(others) - 4
        for number, (name, _) in enumerate(others):
            legend.append((f"  {LETTERS[number]} {fit_end(visible(name), room)}", _ROLES[number + 1]))
        lines.append(legend)
    padded: list[Line] = [[*line, (" " * (width - len(plain(line))), "text")] for line in lines[:height]]
    return padded, range(left + 1, left + 1 + across)


def _drawn(
    charted: Charted,
    metric: Metric,
    curves: Sequence[_Curve],
    edges: Sequence[float],
    scale: Axis,
    limit: int | None,
    across: int,
    down: int,
) -> tuple[list[list[Piece]], bool]:
    """Return the cells of the plot, and whether the line of the threshold has its name in it.

    The first curve is above the others, they are above the threshold, in row `limit`, and that is above the spread and
    the range of the first curve. edges: its deviations.
    """
    means = [bucket.mean for _, bucket in curves[0].points]
    behind, canvas = Canvas(across, down), Canvas(across, down)
    for side in (-1, 1):
        ends = [mean + side * edge for mean, edge in zip(means, edges, strict=True)]
        ends = [end if math.isfinite(end) and scale.holds(end) else math.nan for end in ends]
        behind.curve(curves[0].line(ends, scale), _SPREAD, dotted=True)
    for x, bucket in curves[0].points:
        if bucket.low < bucket.high:
            high, low = (dot_row(scale.position(end), down) for end in (bucket.high, bucket.low))
            behind.column(x, high, low, _SPREAD)
    for curve in reversed(curves):
        canvas.curve(curve.line((bucket.mean for _, bucket in curve.points), scale), curve.role)
    if charted.average:
        canvas.curve(curves[0].line(moving_average(bucket for _, bucket in curves[0].points), scale), "ema")
    below, above, is_named = behind.rows(), canvas.rows(), False
    if limit is not None:
        text, cells = f"{_threshold_text(metric)} "[1:], [(LIMIT, "target")] * across
        for start in (across - len(text), 2):
            if not is_named and start >= 0 and all(cell == " " for cell, _ in above[limit][start : start + len(text)]):
                is_named = True
                cells[start : start + len(text)] = [(character, "target") for character in text]
        below[limit] = cells
    layers = zip(below, above, strict=True)
    return [[b if a[0] == " " else a for b, a in zip(*rows, strict=True)] for rows in layers], is_named


def _mark_plot(
    plot: list[list[Piece]], charted: Charted, metric: Metric, curve: _Curve, scale: Axis, marks: Sequence[Mark]
) -> bool:
    """Mark cursor, single values, cut and missing ones, and alarms in the plot; return whether it has an alarm."""
    across, is_alarmed, window = len(plot[0]), False, charted.window
    is_young = len(curve.points) * _COLUMNS_A_DOT <= across
    for x, bucket in curve.points:
        if not math.isnan(bucket.mean):
            row, column = row_of(scale.position(bucket.mean), len(plot)), x // DOTS_ACROSS
            if not scale.holds(bucket.mean):
                plot[row][column] = (_CUT[row == 0], curve.role)
            elif is_young:
                plot[row][column] = (DOT, curve.role)
    if charted.iteration is not None:
        column = _column_of(window, charted.iteration, across)
        for cells in plot:
            cells[column] = ("│" if cells[column][0] in (" ", LIMIT) else cells[column][0], "cursor")
    for x, bucket in curve.points:
        if bucket.missing:
            plot[-1][x // DOTS_ACROSS] = (MISSING, "missing")
    alarms = (mark for mark in marks if mark.kind == "alarm" and window.first <= mark.iteration <= window.last)
    for mark in sorted(alarms, key=lambda mark: mark.level == "error"):
        value = reading_at(replace(charted, at=window.history.index_of(mark.iteration)), metric).value
        if math.isfinite(value):
            is_alarmed, row = True, row_of(scale.position(value), len(plot))
            plot[row][_column_of(window, mark.iteration, across)] = sign_of(mark)
    return is_alarmed


def _put_letter(plot: list[list[Piece]], number: int, curve: _Curve, scale: Axis) -> None:
    """Put the letter of another run at the end of its line, or on the nearest free row there."""
    end = next(((x, bucket.mean) for x, bucket in reversed(curve.points) if not math.isnan(bucket.mean)), None)
    if end is None:
        return
    column, wanted = end[0] // DOTS_ACROSS + 1, row_of(scale.position(end[1]), len(plot))
    free = [row for row, cells in enumerate(plot) if cells[column][0] in (" ", LIMIT)]
    if free:
        plot[min(free, key=lambda row: abs(row - wanted))][column] = (LETTERS[number], curve.role)


def _title(charted: Charted, metric: Metric, curve: _Curve, width: int, *, selected: bool, threshold: bool) -> Line:
    """Return the title: the metric, its value at the cursor, its unit and its change, as far as they fit.

    threshold: with the number of the threshold, whose line has no name on the plot.
    """
    reading = reading_at(charted, metric)
    sign = "!" if metric.beyond(reading.value) else ""
    role = "missing" if not math.isfinite(reading.value) else "target" if sign else "strong"
    pieces: Line = [
        ("▸" if selected else " ", "selected"),
        (metric.label, "selected" if selected else "strong"),
        (f"  {sign + number_text(reading.value, metric.digits, 9):>{metric.digits + 4}}", role),  # nothing moves
        (f" {metric.unit}" if metric.unit else "", "muted"),
    ]
    if change := change_text(reading.change, metric.digits, min(width - len(plain(pieces)) - 2, 10)):
        pieces.append((f"  {change:<{metric.digits + 4}}", "muted"))
    if metric.spread and metric.spread in charted.window.history.names:
        deviation = reading_at(charted, metric._replace(field=metric.spread)).value
        if math.isfinite(deviation):
            pieces.append((f"  ± {number_text(deviation, metric.digits, 9)}", "muted"))
    if threshold and metric.threshold is not None:
        pieces.append((f"  {_threshold_text(metric)}", "target"))
    if charted.average:
        buckets = [bucket for _, bucket in curve.points if charted.at is None or bucket.first_index <= charted.at]
        for average in moving_average(buckets)[-1:]:
            pieces.append((f"  EMA {number_text(average, metric.digits, 9)}", "ema"))
    if charted.log and not metric.log:
        pieces.append(("  no log scale", "muted"))
    return fitting(pieces, width)


def fitting(pieces: Line, width: int) -> Line:
    """Return the pieces that fit into `width` columns, in order."""
    line: Line = []
    for text, role in pieces:
        if cell_len(text) <= width:
            line.append((text, role))
            width -= cell_len(text)
    return line


def _threshold_text(metric: Metric) -> str:
    return f"{LIMIT} {'target' if metric.aimed else 'limit'} {metric.threshold:g}"


def _iteration_axis(charted: Charted, across: int) -> Line:
    """Return the x axis with the iterations on it, that of the cursor first, then the ends, then round ones."""
    window = charted.window
    cells: list[Piece] = [("─", "axis")] * across
    round_ones = ticks(Axis(window.first, window.last), max(across // _COLUMNS_A_TICK, 1))
    cursor = [] if charted.iteration is None else [charted.iteration]
    numbers = dict.fromkeys((*cursor, window.first, window.last, *map(math.ceil, round_ones)))
    taken: list[range] = []
    for number in numbers if window.iterations else ():
        text = str(number)
        start = min(max(_column_of(window, number, across) - len(text) // 2, 0), across - len(text))
        here = range(start - 1, start + len(text) + 1)
        if start < 0 or any(here.start < other.stop - 1 and other.start < here.stop - 1 for other in taken):
            continue
        taken.append(here)
        role = "cursor" if number in cursor else "muted"
        cells[start : start + len(text)] = [(character, role) for character in text]
    return line_of(cells)


def _mark_line(marks: Sequence[Mark], window: Window, across: int) -> Line:
    """Return the line of marks, each below its iteration."""
    cells: list[Piece] = [(" ", "text")] * across
    ranks = [-1] * across
    for mark in marks:
        rank = _RANKS.index(mark.kind) if mark.level != "error" else len(_RANKS)
        if window.iterations and window.first <= mark.iteration <= window.last:
            column = _column_of(window, mark.iteration, across)
            if rank >= ranks[column]:
                ranks[column] = rank
                cells[column] = sign_of(mark)
    return line_of(cells)


def _column_of(window: Window, iteration: int, across: int) -> int:
    """Return the column of an iteration: that of the dot at which its value is drawn."""
    return window.place_of(iteration, DOTS_ACROSS * across) // DOTS_ACROSS
