"""Choice of the metrics that the Training pane shows."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static
from textual.widgets.selection_list import Selection

from trainer.runs.listing import PPO
from workbench.kit.dialog import ChoiceList, Dialog
from workbench.run.history import History
from workbench.run.metrics import MAIN, METRICS, METRICS_OF_KIND, Metric
from workbench.run.view import RunView


def metrics_of(view: RunView, chosen: Sequence[Metric]) -> tuple[Metric, ...]:
    """Return the metrics to show: of a PPO run the informative ones of `chosen`, of other kinds all informative ones.

    Those that have a large chart come first. The KL has its target as threshold. All of `chosen` are shown before the
    first iteration, or if none is informative.
    """
    history, first = view.history, MAIN[view.history.kind]
    if history.kind != PPO:
        shown = tuple(metric for metric in METRICS_OF_KIND[history.kind] if is_informative(history, metric))
    else:
        shown = tuple(metric for metric in chosen if is_informative(history, metric)) or tuple(chosen)
        if (target := view.kl_target) is not None and target > 0:
            shown = tuple(m._replace(threshold=target, aimed=True) if m.field == "kl" else m for m in shown)
    return tuple(sorted(shown, key=lambda m: first.index(m.field) if m.field in first else len(first)))


def is_informative(history: History, metric: Metric) -> bool:
    """Return whether the run records `metric` and it changes, as far as it is shown only then."""
    if not len(history) or not (metric.optional or metric.if_varied):
        return True
    low, high = history.range_of(metric.field)
    return not math.isnan(low) and not (metric.if_varied and low == high)


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
            yield ChoiceList(
                *(Selection(Content(metric.label), metric.field, metric.field in self._shown) for metric in METRICS)
            )
            hidden = "Metrics that this run does not record, or that never change, are hidden."
            keys = self.hint(("space", "shows or hides one"), ("metrics.close", "closes"))
            yield Static(Content.assemble(hidden, "\n", keys), classes="detail")

    def action_close(self) -> None:
        chosen = set(self.query_one(ChoiceList).selected)
        self.dismiss(tuple(metric.field for metric in METRICS if metric.field in chosen))
