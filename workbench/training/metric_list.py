"""List of the metrics of a run, one row each, with one cursor over the iterations of all."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import ClassVar

from textual.events import Click
from textual.message import Message

from workbench.kit.drawing import Drawn, Line, component_classes
from workbench.kit.window import window_of
from workbench.run.history import History
from workbench.run.metrics import Metric
from workbench.training.charted import Charted
from workbench.training.metric_row import RowShape, metric_row, row_shape


class MetricList(Drawn, can_focus=True):
    """Widget that draws the rows that fit, including the selected one, below a line with the iterations they show."""

    COMPONENT_CLASSES: ClassVar[set[str]] = component_classes(
        "text", "strong", "muted", "series", "target", "missing", "cursor", "selected"
    )

    class Picked(Message):
        """Posted when a row is clicked. iteration: the one under the mouse, None outside the sparkline."""

        def __init__(self, row: int, iteration: int | None) -> None:
            super().__init__()
            self.row = row
            self.iteration = iteration

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._charted = Charted(window=window_of(History()))
        self._metrics: Sequence[Metric] = ()
        self._selected = 0
        self._row_height = 1
        self._top = 0  # the first visible row
        self._empty = ""

    def show(self, charted: Charted, metrics: Sequence[Metric], selected: int, *, row_height: int, empty: str) -> None:
        """Draw `metrics` from now on. empty: the text to show before the first iteration."""
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
            lines += metric_row(
                charted.window,
                metric,
                width,
                shape,
                at=charted.at,
                average=charted.average,
                log=charted.log,
                selected=number == self._selected,
            )
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
        return [(text[:width], "muted")]
    column = shape.spark_at + window.column_of(charted.iteration, min(shape.spark, window.iterations))
    if len(text) < column:
        return [(text.ljust(column), "muted"), ("▾", "cursor")]
    if column + 1 + len(text) <= width:
        return [(" " * column, "text"), ("▾", "cursor"), (text, "muted")]
    return [(text[:width], "muted")]
