"""Dialog that selects the metrics of the training pane."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import SelectionList, Static
from textual.widgets.selection_list import Selection

from workbench.kit.dialog import Dialog
from workbench.run.metrics import METRICS


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
            keys = self.hint(("space", "shows or hides one"), ("metrics.close", "closes"))
            yield Static(Content.assemble(_HIDDEN, "\n", keys), classes="detail")

    def action_close(self) -> None:
        chosen = set(self.query_one(SelectionList).selected)
        self.dismiss(tuple(metric.field for metric in METRICS if metric.field in chosen))


_HIDDEN = "Metrics that this run does not record, or that never change, have no row."
