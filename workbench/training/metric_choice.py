"""Selection of the metrics of a run that have a row."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainer.runs.listing import PPO
from workbench.run.history import History
from workbench.run.metrics import DEFAULT, METRICS_OF_KIND, Metric
from workbench.run.view import RunView


def metrics_of(view: RunView, chosen: Sequence[Metric]) -> tuple[Metric, ...]:
    """Return the metrics that have a row: of a PPO run the informative ones of `chosen`, of other kinds all.

    The KL has its target as threshold. All of `chosen` have a row before the first iteration, or if none is
    informative.
    """
    history = view.history
    if history.kind != PPO:
        return METRICS_OF_KIND[history.kind]
    return tuple(_aimed(metric, view.kl_target) for metric in chosen if _tells(history, metric)) or tuple(chosen)


def hidden_metrics(view: RunView, chosen: Sequence[Metric]) -> int:
    """Return how many informative default metrics of a PPO run are not `chosen`; 0 for other kinds."""
    history = view.history
    if history.kind != PPO:
        return 0
    return sum(_tells(history, metric) for metric in DEFAULT if metric not in chosen)


def _tells(history: History, metric: Metric) -> bool:
    if not len(history) or not (metric.optional or metric.if_varied):
        return True
    low, high = history.range_of(metric.field)
    return not math.isnan(low) and not (metric.if_varied and low == high)


def _aimed(metric: Metric, kl_target: float | None) -> Metric:
    return metric._replace(threshold=kl_target, aimed=True) if kl_target and metric.field == "kl" else metric
