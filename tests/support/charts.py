"""Histories and texts for the tests of charts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import strategies as st
from scripted_run import evaluation, iteration

from workbench.run.history import Bucket, MetricHistory
from workbench.run.metrics import METRICS, Metric
from workbench.text import Line, plain

SCORE = next(metric for metric in METRICS if metric.field == "score_mean")
KL = next(metric for metric in METRICS if metric.field == "kl")
CLIP = next(metric for metric in METRICS if metric.field == "clip_fraction")

any_values = st.lists(
    st.floats() | st.sampled_from([float("nan"), float("inf"), float("-inf"), 1e308, -1.7e308, 5e-324, 0.0, -0.0]),
    max_size=300,
)


def history_of(values: Iterable[float], *, field: str = "score_mean", first: int = 1, **others: Any) -> MetricHistory:
    """Return a history whose column `field` has `values`, and whose scores have no recorded spread unless given."""
    history = MetricHistory()
    others = {"score_std": math.nan, **others}
    held_out = field.removeprefix("eval/") if field.startswith("eval/") else ""
    for number, value in enumerate(values, first):
        history.append(iteration(number, **({} if held_out else {field: value}), **others))
        if held_out:
            history.evaluate(evaluation(number, **{held_out: value}))
    return history


class Counted(MetricHistory):
    """A history that counts the numbers that are read from it."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

    def buckets(self, name: str, width: int, start: int = 0, stop: int | None = None) -> list[Bucket]:
        buckets = super().buckets(name, width, start, stop)
        self.read += len(buckets)
        return buckets

    def column(self, name: str) -> Sequence[float]:
        history, column = self, super().column(name)

        class Column(Sequence[float]):
            def __len__(self) -> int:
                return len(column)

            def __getitem__(self, index: Any) -> Any:
                history.read += len(range(*index.indices(len(column)))) if isinstance(index, slice) else 1
                return column[index]

        return Column()


def texts(lines: Iterable[Line]) -> list[str]:
    return [plain(line) for line in lines]


def roles(lines: Iterable[Line], role: str) -> str:
    """Return everything drawn in `role`."""
    return "".join(text for line in lines for text, its in line if its == role)


def metric(field: str) -> Metric:
    return next(metric for metric in METRICS if metric.field == field)
