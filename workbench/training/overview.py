"""Overview of a run: its large charts, the grid of the other metrics, where the time went, and the scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from textual.events import Click
from textual.message import Message

from workbench.kit.axes import Axis, Window, number_text
from workbench.kit.drawing import ROLES, Drawn, component_classes, rule
from workbench.kit.glyphs import DOTS_ACROSS, bar_lines
from workbench.numbers import duration
from workbench.run.history import History
from workbench.run.metrics import Metric
from workbench.run.view import Mark
from workbench.text import Line, fit_start
from workbench.training.chart import Picture, metric_chart
from workbench.training.layout import Layout
from workbench.training.metric_grid import Charted, cell_shape, metric_cell

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_MOST_BINS = 40
_WIDEST_BIN = 3  # columns
_DIGITS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Values that the overview draws. The first metrics have the charts of the layout, the others cells.

    An enlarged metric is alone, with marks below its chart and further runs in it.
    """

    charted: Charted
    metrics: Sequence[Metric]
    selected: int
    layout: Layout
    marks: Sequence[Mark] = ()
    others: Sequence[tuple[str, History]] = ()


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
            return window.iteration_at(DOTS_ACROSS * place, DOTS_ACROSS * len(self.plot))
        drawn = min(len(self.plot), window.iterations)
        return window.iteration_in(place * drawn // len(self.plot), drawn)


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
        picture = Picture(charted=shown.charted, metric=shown.metrics[number], marks=shown.marks, others=shown.others)
        chart, plot = metric_chart(picture, end - start, height, selected=number == shown.selected)
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
    """Return a line of at most `width` columns: each phase with a bar as long as its share of the time and its seconds.

    Where names and seconds leave no room for bars, the heading gets shorter; then the shortest phases become one,
    `other`.
    """
    spent = {phase: value for phase, value in seconds.items() if math.isfinite(value) and value > 0}
    if not spent:
        return []
    total = duration(sum(spent.values()))
    headings = [f" where the time of iteration {iteration} went   {total}", f" iteration {iteration}  {total}"]
    other = 0.0
    while True:
        phases = {**spent, "other": other} if other else spent
        heading = headings[0] if headings else f" {total}"
        gap = " " if headings else ""
        texts = [(f"{gap} {phase} ", f"{gap}{duration(value)}") for phase, value in phases.items()]
        room = width - len(heading) - sum(len(before) + len(after) for before, after in texts)
        if room >= len(phases) * (4 * len(headings) or 1):
            break
        if headings:
            del headings[0]
        elif len(spent) > 1:
            other += spent.pop(min(spent, key=lambda phase: spent[phase]))
        else:
            return [(fit_start(heading, width), "muted")]
    line: Line = [(heading, "muted")]
    for (before, after), value in zip(texts, phases.values(), strict=True):
        # Of eighths of a column, at least one each; in columns, together at most the room.
        whole, rest = divmod(1 + math.floor(value / sum(phases.values()) * 8 * (room - len(phases))), 8)
        line += [(before, "muted"), ("█" * whole + _EIGHTHS[rest].strip(), "series"), (after, "text")]
    return line


def histogram(scores: Sequence[float], iteration: int, width: int, height: int) -> list[Line]:
    """Return the scores of `iteration` as at most `height` lines of at most `width` columns: title, bars and axis.

    The title counts the scores that are not finite. With n scores there are about 2 * sqrt(n) bins, from 5 to 40.
    """
    finite = [score for score in scores if math.isfinite(score)]
    text, mean = f"scores of iteration {iteration} · {len(scores)}", 0.0
    if finite:
        mean = sum(score / len(finite) for score in finite)  # dividing first keeps the sum of large numbers finite
        text += f" · mean {number_text(mean, _DIGITS, 9)}"
        deviation = largest = max(abs(score - mean) for score in finite)
        if 0 < largest < math.inf:
            deviation *= math.sqrt(sum(((score - mean) / largest) ** 2 for score in finite) / len(finite))
        if len(text) + 16 <= width:
            text += f" ± {number_text(deviation, _DIGITS, 9)}"
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
    return [*lines, *([(" " + line, "series")] for line in bars), _axis(scale, mean, bins * columns)][:height]


def _axis(scale: Axis, mean: float, width: int) -> Line:
    """Return the axis: its ends and the place of the mean."""
    low, high = (number_text(end, _DIGITS, 9) for end in (scale.low, scale.high))
    room = width - len(low) - len(high) - 2
    if scale.high <= scale.low or room < 1:
        return [(f" {low}" if scale.high <= scale.low else f" {low} {high}", "muted")]
    place = round(scale.position(mean) * (width - 1)) - len(low) - 1
    line = "".join("┴" if place == column else "─" for column in range(room))
    return [(f" {low} ", "muted"), (line, "axis"), (f" {high}", "muted")]


class DrawnBy(Drawn):
    """Widget that shows what a function draws, given its width and height."""

    COMPONENT_CLASSES: ClassVar[set[str]] = component_classes(*ROLES)
    _lines_of: Callable[[int, int], Sequence[Line]] | None = None

    def show(self, lines_of: Callable[[int, int], Sequence[Line]]) -> None:
        self._lines_of = lines_of
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        return self._lines_of(width, height)[:height] if self._lines_of else ()


class Overview(DrawnBy, can_focus=True):
    """Widget with the charts, the grid and the time, or with another drawing. The pane handles the keys."""

    _metrics: Shown | None = None

    class Picked(Message):
        """Posted when a metric is clicked. iteration: the one under the mouse, None outside the plot."""

        def __init__(self, number: int, iteration: int | None) -> None:
            super().__init__()
            self.number = number
            self.iteration = iteration

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
