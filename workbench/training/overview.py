"""Overview of a run: two large charts, the grid of the other metrics, and where the time went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import ClassVar, NamedTuple

from textual.events import Click
from textual.message import Message

from workbench.kit.drawing import Drawn, component_classes
from workbench.kit.glyphs import DOTS_ACROSS
from workbench.run.metrics import Metric
from workbench.text import Line
from workbench.training.chart import Picture
from workbench.training.large_chart import large_chart
from workbench.training.layout import Layout
from workbench.training.metric_grid import Charted, cell_shape, metric_cell
from workbench.training.time_bar import time_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Values that the overview draws. The first metrics have the charts of the layout, the others cells."""

    charted: Charted
    metrics: Sequence[Metric]
    selected: int
    layout: Layout


class Zone(NamedTuple):
    """Place of a metric, and of the plot in it."""

    number: int  # of the metric
    columns: range
    lines: range
    plot: range  # columns
    dots: bool  # the plot goes from the middle of the first iteration to that of the last, else bars are side by side


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


def cells_hidden(shown: Shown) -> int:
    """Return how many metrics have no cell because the lines do not suffice."""
    large = len(shown.layout.charts)
    return max(len(shown.metrics) - large - shown.layout.rows * shown.layout.columns, 0)


def _charts(shown: Shown, width: int) -> tuple[list[Line], list[Zone]]:
    """Return the large charts, above each other or side by side with a line between them."""
    lines: list[Line] = []
    zones: list[Zone] = []
    heights, stacked = shown.layout.charts, shown.layout.stacked
    across = 1 if stacked else max(len(heights), 1)
    for number, height in enumerate(heights):
        start = 0 if stacked else number * (width + 1) // across
        end = width if stacked else (number + 1) * (width + 1) // across - 1
        picture = Picture(charted=shown.charted, metric=shown.metrics[number])
        chart, place = large_chart(picture, end - start, height, selected=number == shown.selected)
        plot = range(start + place.left, start + place.left + place.across)
        top = len(lines) if stacked else 0
        zones.append(Zone(number, range(start, end), range(top, top + height), plot, True))
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
    if not rows:
        return lines, zones
    skipped = max(min(shown.selected - first - rows * columns + 1, len(metrics) - rows * columns), 0)
    metrics = metrics[skipped : skipped + rows * columns]
    for column in range(columns):
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


class Overview(Drawn, can_focus=True):
    """Widget with the charts, the grid and the time. The pane handles the keys."""

    COMPONENT_CLASSES: ClassVar[set[str]] = component_classes(
        "text", "strong", "muted", "axis", "series", "ema", "target", "missing", "cursor", "selected"
    )
    _content: Shown | None = None
    _empty = ""
    _zones: Sequence[Zone] = ()

    class Picked(Message):
        """Posted when a metric is clicked. iteration: the one under the mouse, None outside the plot."""

        def __init__(self, number: int, iteration: int | None) -> None:
            super().__init__()
            self.number = number
            self.iteration = iteration

    def show(self, shown: Shown, empty: str) -> None:
        """Replace what is shown. empty: the text to show before the first iteration."""
        self._content, self._empty = shown, empty
        self.redraw()

    def draw(self, width: int, height: int) -> list[Line]:
        self._zones = ()
        if self._content is None or not len(self._content.charted.window.history):
            return [[], *([(f" {line}", "muted")] for line in wrap(self._empty, max(width - 2, 1)))][:height]
        lines, self._zones = overview(self._content, width)
        return lines[:height]

    def on_click(self, event: Click) -> None:
        zone = next((zone for zone in self._zones if event.x in zone.columns and event.y in zone.lines), None)
        if zone is None or self._content is None:
            return
        iteration, window = None, self._content.charted.window
        if event.x in zone.plot:
            place = event.x - zone.plot.start
            if zone.dots:
                iteration = window.iteration_at(DOTS_ACROSS * place, DOTS_ACROSS * len(zone.plot))
            else:
                drawn = min(len(zone.plot), window.iterations)
                iteration = window.iteration_in(place * drawn // len(zone.plot), drawn)
        self.post_message(self.Picked(zone.number, iteration))
