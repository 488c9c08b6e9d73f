"""Large chart of one metric in the overview: its title, its curve, its limit, and the iterations on one line."""

from __future__ import annotations

import math
from typing import NamedTuple

from workbench.kit.axes import Axis, number_text, ticks
from workbench.kit.glyphs import DOTS_ACROSS
from workbench.run.metrics import Metric
from workbench.text import Line, Piece, line_of, plain
from workbench.training.chart import (
    COLUMNS_A_TICK,
    LABELS,
    Picture,
    column_of,
    curves_of,
    fitting,
    plot_cells,
    row_of,
    threshold_text,
    tick_rows,
)
from workbench.training.metric_grid import LIMIT, Charted, change_text, reading_at

DOT = "•"
_SHORT_LABELS = 4  # columns of the y axis's numbers, unless they are wider
_LINES_A_SHORT_TICK = 3
_COLUMNS_A_DOT = 6  # between single values that are marked


class ChartPlace(NamedTuple):
    """Columns of a large chart."""

    left: int  # before the plot
    across: int  # of the plot


def large_chart(picture: Picture, width: int, height: int, *, selected: bool = False) -> tuple[list[Line], ChartPlace]:
    """Return a chart as `height` lines of `width` columns, and where its plot is: title, plot, iterations on the axis.

    The threshold has its number at its line. A few iterations fill the width, a dot for each.
    """
    charted, metric = picture.charted, picture.metric
    down, left = max(height - 2, 1), _SHORT_LABELS
    curves = curves_of(picture, max(width - left - 1, 1))
    labels = tick_rows(curves.scale, down, max(down // _LINES_A_SHORT_TICK, 3 if curves.scale.log else 2))
    if (widest := max(map(len, labels.values()), default=0)) > left:
        left = min(widest, LABELS)
        curves = curves_of(picture, max(width - left - 1, 1))
    across = max(width - left - 1, 1)
    plot = plot_cells(picture, curves, across, down)
    points = curves.series[0]
    if len(points) * _COLUMNS_A_DOT <= across:
        for x, bucket in points:
            if not math.isnan(bucket.mean):
                plot[row_of(curves.scale.position(bucket.mean), down)][x // DOTS_ACROSS] = (DOT, "series")
    named = metric.threshold is not None and _name_threshold(plot, metric, curves.scale)
    rows = [
        [(labels.get(row, "")[:left].rjust(left), "muted"), ("┤" if row in labels else "│", "axis"), *line_of(cells)]
        for row, cells in enumerate(plot)
    ]
    title = _short_title(picture, width, selected=selected, threshold=not named)
    lines = [title, *rows, [(" " * left, "text"), ("└", "axis"), *_short_axis(charted, across)]]
    return [[*line, (" " * (width - len(plain(line))), "text")] for line in lines[:height]], ChartPlace(
        left + 1, across
    )


def _short_title(picture: Picture, width: int, *, selected: bool, threshold: bool) -> Line:
    """Return the title of a large chart: the metric, its value at the cursor, its unit and its change.

    threshold: with the number of the threshold, whose line is not on the plot.
    """
    charted, metric = picture.charted, picture.metric
    reading = reading_at(charted, metric)
    sign = "!" if metric.beyond(reading.value) else ""
    role = "missing" if not math.isfinite(reading.value) else "target" if sign else "strong"
    pieces: Line = [
        ("▸" if selected else " ", "selected"),
        (metric.label, "selected" if selected else "strong"),
        (f"  {sign}{number_text(reading.value, metric.digits, 9)}", role),
        (f" {metric.unit}" if metric.unit else "", "muted"),
    ]
    room = width - len(plain(pieces)) - 2
    if change := change_text(reading.change, metric.digits, min(room, 10)):
        pieces.append((f"  {change}", "muted"))
    if metric.spread and metric.spread in charted.window.history.names:
        deviation = reading_at(charted, metric._replace(field=metric.spread)).value
        if math.isfinite(deviation):
            pieces.append((f"  ± {number_text(deviation, metric.digits, 9)}", "muted"))
    if threshold and metric.threshold is not None:
        pieces.append((f"  {threshold_text(metric)}", "target"))
    return fitting(pieces, width)


def _name_threshold(plot: list[list[Piece]], metric: Metric, scale: Axis) -> bool:
    """Write the threshold at its line, where that is free; return whether it could be written."""
    if metric.threshold is None or not scale.holds(metric.threshold):
        return False
    cells, text = plot[row_of(scale.position(metric.threshold), len(plot))], f"{threshold_text(metric)} "
    for start in (len(cells) - len(text), 2):
        if 0 <= start <= len(cells) - len(text) and all(c == LIMIT for c, _ in cells[start : start + len(text)]):
            cells[start : start + len(text)] = [(character, "target") for character in text]
            return True
    return False


def _short_axis(charted: Charted, across: int) -> Line:
    """Return the x axis with the iterations on it, that of the cursor first, then the ends, then round ones."""
    window = charted.window
    cells: list[Piece] = [("─", "axis")] * across
    if not window.iterations:
        return line_of(cells)
    round_ones = ticks(Axis(window.first, window.last), max(across // COLUMNS_A_TICK, 1))
    taken: list[range] = []
    cursor = [] if charted.iteration is None else [charted.iteration]
    for number in dict.fromkeys((*cursor, window.first, window.last, *map(math.ceil, round_ones))):
        text = str(number)
        start = min(max(column_of(window, number, across) - len(text) // 2, 0), across - len(text))
        here = range(start - 1, start + len(text) + 1)
        if start < 0 or any(here.start < other.stop - 1 and other.start < here.stop - 1 for other in taken):
            continue
        taken.append(here)
        role = "cursor" if number in cursor else "muted"
        cells[start : start + len(text)] = [(character, role) for character in text]
    return line_of(cells)
