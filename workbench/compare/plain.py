"""Comparison as plain values, for JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from workbench.compare.curves import FIELDS
from workbench.compare.frontier import Point, best, frontier, levels
from workbench.compare.measures import Value, known, sections
from workbench.compare.report import PROMPTS
from workbench.compare.run import ComparedRun
from workbench.compare.same_prompts import shared_prompts
from workbench.compare.settings import cautions, compared_settings
from workbench.run.sample_records import Sample

VERSION = 1
"""Version of the object. Fields may be added; removing one or changing its meaning changes this number."""


def plain_values(runs: Sequence[ComparedRun]) -> dict[str, Any]:
    """Return the object that docs/compare.md describes; unknown numbers are None, and shares are fractions of 1."""
    found = frontier(runs)
    kls = levels(point for points in found.compared for point in points)
    settings = compared_settings(runs)
    return {
        "comparison": VERSION,
        "runs": [_run(run) for run in runs],
        "cautions": cautions(settings),
        "numbers": {
            measure.key: {run.letter: _value(measure.of(run)) for run in runs}
            for section in sections(runs)
            for measure in section.measures
        },
        "frontier": {
            "runs": {
                run.letter: {
                    "training": [_point(point) for point in training],
                    "held_out": [_point(point) for point in evaluations],
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
                        run.letter: None if (point := best(points, kl)) is None else _point(point)
                        for run, points in zip(runs, found.compared, strict=True)
                    },
                }
                for kl in kls
            ],
        },
        "curves": {run.letter: _curves(run) for run in runs},
        "settings": {
            "differences": [{"key": key, "values": values} for key, values in settings.differences],
            "only": settings.only,
            "changes": {
                run.letter: [
                    {"key": change.key, "old": change.old, "value": change.value, "iteration": change.iteration}
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


def _run(run: ComparedRun) -> dict[str, Any]:
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


def _point(point: Point) -> dict[str, Any]:
    return point._asdict()


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
