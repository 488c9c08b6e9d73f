"""Which metrics of a run have a row."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainer.runs.listing import PPO
from workbench.run.history import History
from workbench.run.metrics import DEFAULT, METRICS_OF_KIND, Metric
from workbench.run.view import RunView


def metrics_of(view: RunView, chosen: Sequence[Metric]) -> tuple[Metric, ...]:
    """Of a PPO run the `chosen` metrics that tell something of it, the KL with its target; of others all.

    Before the first iteration none has told anything yet: then it is all that were chosen.
    """
    history = view.history
    if history.kind != PPO:
        return METRICS_OF_KIND[history.kind]
    return tuple(_aimed(metric, view.kl_target) for metric in chosen if _tells(history, metric)) or tuple(chosen)


def hidden_metrics(view: RunView, chosen: Sequence[Metric]) -> int:
    """How many metrics that a PPO run shows by default, and that tell something of this one, are not `chosen`."""
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
