"""Curves of each metric: one line of bars per run, on one scale, to compare runs at a glance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from workbench.compare.lines import Line, number, padded, role_of
from workbench.compare.run import ComparedRun
from workbench.kit.cells import fit
from workbench.kit.scale import scale_of
from workbench.kit.window import window_over
from workbench.run.metrics import METRICS_OF_KIND, Metric
from workbench.text import visible

FIELDS = (
    "score_mean",
    "reward_mean",
    "kl",
    "entropy",
    "response_length",
    "explained_variance",
    "loss",
    "accuracy",
    "lead",
)
_BARS = "▁▂▃▄▅▆▇█"
_MISSING = "×"  # NaN or infinite
_NAME = 16  # columns at most
_LEAST = 10  # columns of bars


def curve_lines(runs: Sequence[ComparedRun], width: int) -> Iterator[Line]:
    """Yield lines of at most `width` columns: for each metric its name, then a line for each run that has it."""
    for field in FIELDS:
        having = [run for run in runs if any(map(math.isfinite, run.column(field)))]
        if having:
            yield from _metric_lines(_metric(field, having[0].view.history.kind), having, width)


def _metric_lines(metric: Metric, runs: Sequence[ComparedRun], width: int) -> Iterator[Line]:
    names = [fit(visible(run.name), _NAME).rstrip() for run in runs]
    named = max(map(cell_len, names))
    ends = [
        " → ".join(number(end * metric.factor, metric.digits) for end in run.view.first_and_last(metric.field))
        for run in runs
    ]
    over = window_over([run.view.history for run in runs])
    across = min(max(width - named - max(map(len, ends)) - 7, _LEAST), over.iterations)
    columns = [over.beside(run.view.history).columns(metric, across) for run in runs]
    scale = scale_of(((bucket.low, bucket.high) for of_run in columns for bucket in of_run if bucket), metric)
    iterations = f"iterations {over.first} to {over.last}" if over.iterations else ""
    unit = f" {metric.unit}" if metric.unit else ""
    bounds = f"   {number(scale.low, metric.digits)} to {number(scale.high, metric.digits)}, {iterations}"
    yield [(metric.label, "text"), (unit, "muted"), (bounds, "muted")]
    for run, name, end, buckets in zip(runs, names, ends, columns, strict=True):
        bars = ["" if bucket is None else _bar(scale.position(bucket.mean)) for bucket in buckets]
        yield [
            (f" {run.letter} {padded(name, named)}  ", role_of(run.letter)),
            (padded("".join(bar or " " for bar in bars), across), role_of(run.letter)),
            (f"  {end}", "text"),
        ]


def _bar(position: float) -> str:
    return _MISSING if math.isnan(position) else _BARS[round(position * (len(_BARS) - 1))]


def _metric(field: str, kind: str) -> Metric:
    found = next(metric for metric in METRICS_OF_KIND[kind] if metric.field == field)
    return found._replace(threshold=None)
