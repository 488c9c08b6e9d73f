"""The comparison as lines of text, and as plain values for JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from rich.cells import cell_len

from trainer.events import plain
from trainer.runs.listing import RECENT
from workbench.columns import fit, fit_name, padded
from workbench.compare.compared_run import PROMPTS, ComparedRun, run_columns, shared_prompts, windows_text
from workbench.compare.frontier import best, frontier_lines, frontier_of, levels
from workbench.compare.lines import NUMBER, Row, heading, notes, role_of, table_lines
from workbench.compare.measures import Value, difference_text, known, sections, value_text
from workbench.compare.prompts import answer_lines
from workbench.compare.settings import cautions, compared_settings, setting_lines
from workbench.kit.glyphs import block
from workbench.kit.lines import Line
from workbench.kit.scale import scale_of
from workbench.kit.window import window_over
from workbench.numbers import duration, number
from workbench.run.metrics import METRICS_OF_KIND, Metric
from workbench.run.sample_table import Sample
from workbench.text import visible

VERSION = 1
"""Version of the object. Fields may be added; removing one or changing its meaning changes this number."""

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
_CURVE_NAME = 16  # columns of a run's name beside its curve, at most
_LEAST_BARS = 10  # columns of a curve
_LABEL = 24  # columns of a number's name
_KIND = 12
_TIME = 8
_LEAST = 4  # columns of a name


def report_lines(runs: Sequence[ComparedRun], width: int) -> Iterator[Line]:
    """Yield lines of at most `width` columns (60 or more): runs, numbers, frontier, curves, settings and responses."""
    settings = compared_settings(runs)
    yield from _runs(runs, width)
    for caution in cautions(settings.differences):
        yield from notes(visible(f"! {caution}"), width)
    yield []
    yield from _numbers(runs, width)
    yield []
    yield heading("score against KL", width, "up and to the left is better")
    yield from frontier_lines(runs, width)
    yield []
    yield heading("curves", width, "on one scale; at the right the means of the first and the last five")
    yield from curve_lines(runs, width)
    yield []
    yield heading("settings", width, "that differ in config.toml")
    yield from setting_lines(runs, settings, width)
    yield []
    yield heading("the same prompts", width, "the newest response of each run")
    yield from answer_lines(runs, width)


def _runs(runs: Sequence[ComparedRun], width: int) -> Iterator[Line]:
    yield heading("runs", width)
    rows = [_facts(run) for run in runs]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    room = width - 3 - sum(widths) - 2 * len(widths)
    names = max(min(max(cell_len(visible(run.name)) for run in runs), room), _LEAST)
    for run, row in zip(runs, rows, strict=True):
        cells = "".join(f"  {padded(cell, size)}" for cell, size in zip(row, widths, strict=True))
        model = visible(run.view.started.model) if run.view.started else ""
        model_cell = f"  {fit(model, room - names - 2).rstrip()}" if room - names - 2 >= _LEAST else ""
        yield [
            (f" {run.letter} {fit_name(visible(run.name), names)}", role_of(run.letter)),
            (cells + model_cell, "text"),
        ]


def _facts(run: ComparedRun) -> tuple[str, ...]:
    view = run.view
    state = visible(f"{run.state}, damaged" if run.problems else run.state)
    time = fit(duration(sum(run.column("seconds_total"))), _TIME).rstrip() if view.history else "-"
    return fit(visible(run.kind), _KIND).rstrip(), state, f"{view.iteration}/{view.total}", time


def _numbers(runs: Sequence[ComparedRun], width: int) -> Iterator[Line]:
    yield heading("numbers", width, f"means of iterations: the last {RECENT}, the best {windows_text(runs)}")
    rows = []
    for section in sections(runs):
        found = []
        for measure in section.measures:
            values = [measure.of(run) for run in runs]
            cells = [value_text(measure, value) for value in values]
            if any(cell != "-" for cell in cells):
                if len(runs) == 2:
                    cells.append(difference_text(measure, *values))
                found.append(Row(f"  {fit(visible(measure.label), _LABEL).rstrip()}", measure.unit, cells))
        if found:
            rows += [Row(section.title), *found]
    yield from table_lines(run_columns(runs), rows, width)


def curve_lines(runs: Sequence[ComparedRun], width: int) -> Iterator[Line]:
    """Yield lines of at most `width` columns: for each metric its name, then a line for each run that has it."""
    for field in FIELDS:
        having = [run for run in runs if any(map(math.isfinite, run.column(field)))]
        if having:
            metrics = METRICS_OF_KIND[having[0].view.history.kind]
            metric = next(metric for metric in metrics if metric.field == field)
            yield from _metric_lines(metric._replace(threshold=None), having, width)


def _metric_lines(metric: Metric, runs: Sequence[ComparedRun], width: int) -> Iterator[Line]:
    names = [fit_name(visible(run.name), _CURVE_NAME).rstrip() for run in runs]
    named = max(map(cell_len, names))
    ends = [
        " → ".join(
            number(end * metric.factor, metric.digits, width=NUMBER) for end in run.view.first_and_last(metric.field)
        )
        for run in runs
    ]
    over = window_over([run.view.history for run in runs])
    across = min(max(width - named - max(map(len, ends)) - 7, _LEAST_BARS), over.iterations)
    columns = [over.beside(run.view.history).columns(metric, across) for run in runs]
    scale = scale_of(((bucket.low, bucket.high) for of_run in columns for bucket in of_run if bucket), metric)
    iterations = f"iterations {over.first} to {over.last}" if over.iterations else ""
    unit = f" {metric.unit}" if metric.unit else ""
    low, high = (number(end, metric.digits, width=NUMBER) for end in (scale.low, scale.high))
    bounds = f"   {low} to {high}, {iterations}"
    yield [(metric.label, "text"), (unit, "muted"), (bounds, "muted")]
    for run, name, end, buckets in zip(runs, names, ends, columns, strict=True):
        bars = [" " if bucket is None else block(scale.position(bucket.mean)) for bucket in buckets]
        yield [
            (f" {run.letter} {padded(name, named)}  ", role_of(run.letter)),
            (padded("".join(bars), across), role_of(run.letter)),
            (f"  {end}", "text"),
        ]


def plain_values(runs: Sequence[ComparedRun]) -> dict[str, Any]:
    """Return the object that docs/compare.md describes; unknown numbers are None, and shares are fractions of 1."""
    found = frontier_of(runs)
    kls = levels(point for points in found.compared for point in points)
    settings = compared_settings(runs)
    return {
        "comparison": VERSION,
        "runs": [run_values(run) for run in runs],
        "cautions": cautions(settings.differences),
        "numbers": {
            measure.key: {run.letter: _value(measure.of(run)) for run in runs}
            for section in sections(runs)
            for measure in section.measures
        },
        "frontier": {
            "runs": {
                run.letter: {
                    "training": [point._asdict() for point in training],
                    "held_out": [point._asdict() for point in evaluations],
                    "compared": "held_out" if held_out else "training",
                }
                for run, training, evaluations, held_out in zip(
                    runs, found.training, found.evaluations, found.held_out, strict=True
                )
            },
            "levels": [
                {
                    "kl": kl,
                    "best": {
                        run.letter: None if (point := best(points, kl)) is None else point._asdict()
                        for run, points in zip(runs, found.compared, strict=True)
                    },
                }
                for kl in kls
            ],
        },
        "curves": {run.letter: _curves(run) for run in runs},
        "settings": {
            "differences": [{"key": key, "values": plain(values)} for key, values in settings.differences],
            "only": settings.only,
            "changes": {
                run.letter: [
                    {
                        "key": change.key,
                        "old": plain(change.old),
                        "value": plain(change.value),
                        "iteration": change.iteration,
                    }
                    for change in run.view.settings
                ]
                for run in runs
            },
        },
        "prompts": [
            {
                "prompt": one.prompt,
                "answers": {
                    run.letter: None if answer is None else _answer(answer)
                    for run, answer in zip(runs, one.answers, strict=True)
                },
            }
            for one in shared_prompts([run.samples for run in runs], PROMPTS)
        ],
    }


def run_values(run: ComparedRun) -> dict[str, Any]:
    """Return the facts of a run for the JSON object."""
    started = run.view.started
    return {
        "letter": run.letter,
        "name": run.name,
        "folder": str(run.folder),
        "kind": run.kind,
        "state": run.state,
        "iteration": run.view.iteration,
        "iterations": run.view.total,
        "model": started.model if started else None,
        "device": started.device if started else None,
        "seed": started.seed if started else None,
        "versions": started.versions if started else {},
        "problems": list(run.problems),
    }


def _curves(run: ComparedRun) -> dict[str, Any]:
    numbers = run.view.history.numbers
    columns = {field: run.column(field) for field in FIELDS}
    return {
        "iteration": list(numbers),
        **{field: [_value(value) for value in column] for field, column in columns.items() if len(column)},
    }


def _answer(sample: Sample) -> dict[str, Any]:
    return {
        "iteration": sample.key.iteration,
        "completion": sample.completion,
        "score": _value(sample.score),
        "kl": _value(sample.kl),
        "tokens": sample.length,
        "truncated": sample.truncated,
    }


def _value(value: Value) -> Any:
    if isinstance(value, tuple):
        return list(value) if known(value) else None
    return value if math.isfinite(value) else None
