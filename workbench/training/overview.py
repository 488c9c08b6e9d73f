"""Overview of a run: its large charts, the grid of the other metrics, where the time went, and the scores."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from textual.events import Click
from textual.message import Message

from workbench.kit.axes import Axis, Window, number_text
from workbench.kit.drawing import Drawn, rule
from workbench.kit.glyphs import DOTS_ACROSS, bar_lines
from workbench.run.history import MetricHistory
from workbench.run.metrics import Metric
from workbench.run.view import Mark
from workbench.text import Line, duration, fit_start
from workbench.training.chart import metric_chart
from workbench.training.metric_grid import Charted, cell_shape, metric_cell

_SIDE_BY_SIDE = 72  # columns in which two charts are wide enough beside each other
_CELL = 36  # columns of a cell of the grid
_NARROW_CELL = 28  # where the cells would not fit otherwise
_CHART = 5  # lines: the least of a chart
_FAIR_CHART = 8
_SHARE = 0.45  # of the lines, for charts, before the cells grow
_TALLEST_CELL = 4
_EVENTS = 13  # most lines of events
_HISTOGRAM = 3
_BESIDE = 110  # columns in which the scores fit beside the events
_MOST_BINS = 40
_WIDEST_BIN = 3  # columns
_DIGITS = 2


class Layout(NamedTuple):
    """Lines and columns of each part; 0 for a hidden part."""

    charts: tuple[int, ...]  # lines of each large chart
    stacked: bool  # one chart above the other
    columns: int  # of the grid
    rows: int
    cell: int  # lines of a cell
    time: int
    histogram: int
    events: int
    beside: bool  # the histogram is left of the events

    @property
    def below(self) -> int:
        """Lines of histogram and events."""
        return max(self.histogram, self.events) if self.beside else self.histogram + self.events


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Values that the overview draws. The first metrics have the charts of the layout, the others cells.

    An enlarged metric is alone, with all marks below its chart and further runs in it, or with a drawing beside it.
    """

    charted: Charted
    metrics: Sequence[Metric]
    selected: int
    layout: Layout
    marks: Sequence[Mark] = ()
    others: Sequence[tuple[str, MetricHistory]] = ()
    drawing: Callable[[int, int], list[Line]] | None = None  # in place of the second chart


class Zone(NamedTuple):
    """Place of a metric, and of the plot in it."""

    number: int  # of the metric
    columns: range
    lines: range
    plot: range  # columns
    dots: bool  # the plot goes from the middle of the first iteration to that of the last, else bars are side by side

    def iteration(self, x: int, window: Window) -> int | None:
        """Return the iteration at column `x`; None outside the plot."""
        if x not in self.plot:
            return None
        place = x - self.plot.start
        if self.dots:
            share = DOTS_ACROSS * place / max(DOTS_ACROSS * len(self.plot) - 1, 1)
            return window.first + round(share * (window.last - window.first))
        drawn = min(len(self.plot), window.iterations)
        return window.iteration_in(place * drawn // len(self.plot), drawn)


def layout(width: int, height: int, *, large: int, small: int, scores: bool, events: int) -> Layout:
    """Share `height` lines of `width` columns out among `large` charts, `small` cells, and what lies below them.

    scores: there are scores for a histogram. events: lines that all events take, with their heading. Charts and grid
    come first; of the rest, each part gets a fair share, and the charts take all that is left.
    """
    stacked, columns = _arrangement(width, height, large, small, bool(events))
    rows, deep = -(-small // columns), large if stacked else min(large, 1)
    columns = -(-small // rows) if rows else 1  # no column without a cell
    beside = scores and width >= _BESIDE and events > _HISTOGRAM
    lines = dict.fromkeys(("chart", "rows", "time", "events", "histogram"), 0) | {"cell": 1}
    free = height
    for part, wanted, each in (
        ("chart", max(min(_CHART, (height - min(rows, 2)) // max(deep, 1)), 1), deep),
        ("rows", rows, 1),
        ("time", 1, 1),
        ("events", min(events, 3), 1),
        ("chart", _FAIR_CHART, deep),
        ("histogram", int(scores and not beside), _HISTOGRAM),  # whole or not at all
        ("events", min(events, 6), 1),
        ("chart", int(_SHARE * height / max(deep, 1)), deep),
        ("cell", 2, rows),
        ("events", min(events, _EVENTS), 1),
        ("cell", _TALLEST_CELL if height >= 2 * _EVENTS else 0, rows),
    ):
        more = max(min(wanted - lines[part], free // max(each, 1)), 0)
        lines[part] += more
        free -= more * each
    histogram = lines["events"] if beside else lines["histogram"] * _HISTOGRAM
    if histogram < _HISTOGRAM:
        histogram, beside = 0, False
    charts = tuple(lines["chart"] + free // deep + (place < free % deep) for place in range(large))
    shown = lines["events"] + (0 if deep else free)
    return Layout(charts, stacked, columns, lines["rows"], lines["cell"], lines["time"], histogram, shown, beside)


def _arrangement(width: int, height: int, large: int, small: int, events: bool) -> tuple[bool, int]:
    """Return whether to stack the charts, and the columns of the grid, so that all cells fit if possible."""
    narrow = width < _SIDE_BY_SIDE and large > 1
    wanted = [(stacked, max(width // _CELL, 1)) for stacked in ((True, False) if narrow else (False,))]
    wanted.append((False, max(width // _NARROW_CELL, 1)))
    for stacked, columns in wanted:
        needed = _CHART * (large if stacked else min(large, 1)) - (-small // columns) + 1 + events
        if needed <= height:
            return stacked, columns
    return wanted[-1]


def overview(shown: Shown, width: int) -> tuple[list[Line], list[Zone]]:
    """Return the lines of the overview, each of `width` columns, and the places of its metrics."""
    lines, zones = _charts(shown, width)
    grid, cells = _grid(shown, width, len(lines))
    lines += grid
    if shown.layout.time:
        history, at = shown.charted.window.history, shown.charted.at
        at = len(history) - 1 if at is None else at
        lines.append(time_line(history.seconds_at(at), history.numbers[at], width))
    return lines, zones + cells


def _charts(shown: Shown, width: int) -> tuple[list[Line], list[Zone]]:
    """Return the large charts, above each other or side by side with a line between them."""
    lines: list[Line] = []
    zones: list[Zone] = []
    heights, stacked = shown.layout.charts, shown.layout.stacked
    across = 1 if stacked else max(len(heights), 1)
    for number, height in enumerate(heights):
        start = 0 if stacked else number * (width + 1) // across
        end = width if stacked else (number + 1) * (width + 1) // across - 1
        if number and shown.drawing:
            chart, plot = shown.drawing(end - start, height), range(0)
        else:
            chart, plot = metric_chart(
                shown.charted,
                shown.metrics[number],
                end - start,
                height,
                selected=number == shown.selected,
                marks=shown.marks,
                others=shown.others,
                enlarged=len(shown.metrics) == 1,
            )
        top = len(lines) if stacked else 0
        place = range(start + plot.start, start + plot.stop)
        zones.append(Zone(number, range(start, end), range(top, top + height), place, True))
        if stacked or not lines:
            lines += chart
        else:
            lines = [[*left, ("│", "axis"), *right] for left, right in zip(lines, chart, strict=False)]
    return lines, zones


def _grid(shown: Shown, width: int, top: int) -> tuple[list[Line], list[Zone]]:
    """Return the cells column by column; where not all fit, those around the selected one."""
    charted, rows, columns, height = shown.charted, shown.layout.rows, shown.layout.columns, shown.layout.cell
    first = len(shown.layout.charts)
    metrics = list(enumerate(shown.metrics))[first:]
    lines: list[Line] = [[] for _ in range(rows * height)]
    zones: list[Zone] = []
    skipped = max(min(shown.selected - first - rows * columns + 1, len(metrics) - rows * columns), 0)
    metrics = metrics[skipped : skipped + rows * columns]
    for column in range(columns if rows else 0):
        start, end = (width * edge // columns for edge in (column, column + 1))
        cells = metrics[column * rows : (column + 1) * rows]
        if not cells:
            break
        shape = cell_shape(charted, [metric for _, metric in cells], end - start - 1, height)
        plot = range(start + shape.spark_at, start + shape.spark_at + shape.spark)
        for row, (number, metric) in enumerate(cells):
            cell = metric_cell(charted, metric, end - start - 1, shape, selected=number == shown.selected)
            for line, drawn in enumerate(cell):
                lines[row * height + line] += [*drawn, (" ", "text")]
            begin = top + row * height
            zones.append(Zone(number, range(start, end), range(begin, begin + height), plot, False))
    return lines, zones


def time_line(seconds: Mapping[str, float], iteration: int, width: int) -> Line:
    """Return a line of at most `width` columns: a piece for each phase as long as its share of the time.

    In it are its name and its seconds, as far as they fit.
    """
    spent = {phase: value for phase, value in seconds.items() if math.isfinite(value) and value > 0}
    if not spent:
        return []
    total = sum(spent.values())
    headings = (
        f" {words}{duration(total)} " for words in (f"time of iteration {iteration}  ", f"iteration {iteration}  ")
    )
    heading = next((text for text in headings if len(text) <= width // 4), f" {duration(total)} ")
    line: Line = [(fit_start(heading, width), "muted")]
    room, start, done = width - len(heading) - 2, 0, 0.0
    for phase, value in spent.items() if room > 0 else ():
        done += value / total
        if (columns := round(done * room) - start - 1) > 0:
            start += columns + 1
            wanted = (f" {phase} {duration(value)} ", f" {phase} ", fit_start(phase, columns) if columns > 3 else "")
            text = next(text for text in wanted if len(text) <= columns)
            line += [("┼" if len(line) > 1 else "├", "axis"), (text, "text"), ("─" * (columns - len(text)), "axis")]
    return [*line, ("─" * (room - start) + "┤", "axis")] if len(line) > 1 else line


def histogram(scores: Sequence[float], iteration: int, width: int, height: int) -> list[Line]:
    """Return the scores of `iteration` as at most `height` lines of at most `width` columns: title, bars and axis.

    The title counts the scores that are not finite. With n scores there are about 2 * sqrt(n) bins, from 5 to 40.
    """
    finite = [score for score in scores if math.isfinite(score)]
    text, mean = f"scores of iteration {iteration} · {len(scores)}", 0.0
    if finite:
        mean = statistics.mean(finite)
        text += f" · mean {number_text(mean, _DIGITS, 9)}"
        if len(text) + 16 <= width:
            text += f" ± {number_text(statistics.pstdev(finite), _DIGITS, 9)}"
    lines = [rule(text, width, missing=len(scores) - len(finite))]
    across = width - 2
    if not finite or across < 1:
        return lines[:height]
    scale = Axis(min(finite), max(finite))
    bins = min(max(round(2 * math.sqrt(len(finite))), 5), _MOST_BINS, across) if scale.high > scale.low else 1
    counts = [0] * bins
    for score in finite:
        counts[min(int(scale.position(score) * bins), bins - 1)] += 1
    columns = min(across // bins, _WIDEST_BIN)
    bars = bar_lines(counts, max(counts), max(height - 2, 1), columns)
    low, high = (number_text(end, _DIGITS, 9) for end in (scale.low, scale.high))
    room = bins * columns - len(low) - len(high) - 2
    axis: Line = [(f" {low}" if scale.high <= scale.low else f" {low} {high}", "muted")]
    if scale.high > scale.low and room > 0:
        place = round(scale.position(mean) * (bins * columns - 1)) - len(low) - 1
        line = "".join("┴" if place == column else "─" for column in range(room))
        axis = [(f" {low} ", "muted"), (line, "axis"), (f" {high}", "muted")]
    return [*lines, *([(" " + line, "policy")] for line in bars), axis][:height]


class Overview(Drawn, can_focus=True):
    """Widget with the charts, the grid and the time, or with another drawing. The pane handles the keys."""

    _metrics: Shown | None = None

    @dataclass
    class Picked(Message):
        """Posted when a metric is clicked. iteration: the one under the mouse, None outside the plot."""

        number: int
        iteration: int | None

    def show(self, lines_of: Callable[[int, int], Sequence[Line]], metrics: Shown | None = None) -> None:
        """Show a drawing. metrics: those that a click can pick in it."""
        self._metrics = metrics
        super().show(lines_of)

    @property
    def zones(self) -> Sequence[Zone]:
        """Places of the metrics that are shown."""
        return overview(self._metrics, self.size.width)[1] if self._metrics else ()

    def on_click(self, event: Click) -> None:
        for zone in self.zones:
            if self._metrics and event.x in zone.columns and event.y in zone.lines:
                self.post_message(self.Picked(zone.number, zone.iteration(event.x, self._metrics.charted.window)))
