"""The comparison as plain values, for JSON. docs/experiments.md describes the object."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from trainer.events import plain
from workbench.compare.compared_run import PROMPTS, ComparedRun, RunGroup, mean, shared_prompts
from workbench.compare.frontier import best, curves_of, levels
from workbench.compare.measures import sections, tested_measures
from workbench.compare.report import FIELDS, all_cautions, has_seeds, interval_of
from workbench.compare.settings import compared_settings
from workbench.run.sample_table import Sample

VERSION = 1
"""Version of the object. Fields may be added; removing one or changing its meaning changes this number."""


def plain_values(groups: Sequence[RunGroup]) -> dict[str, Any]:
    """Return the comparison; unknown numbers are None, and shares are fractions of 1.

    A group has its letter; of several runs in a group, each has the letter and a number.
    """
    settings = compared_settings(groups)
    curves = curves_of(groups)
    kls = levels(point for of_group in curves for curve in of_group for point in curve.compared)
    runs = {label: run for group in groups for label, run in zip(group.labels, group.runs, strict=True)}
    curve_of = dict(zip(runs, (curve for of_group in curves for curve in of_group), strict=True))
    return {
        "comparison": VERSION,
        "groups": [{"letter": group.letter, "name": group.name, "seeds": group.seeds} for group in groups],
        "runs": [_run(name, run) for name, run in runs.items()],
        "cautions": all_cautions(groups, settings),
        "numbers": _numbers(groups),
        "differences": _differences(groups) if has_seeds(groups) else [],
        "frontier": {
            "runs": {
                name: {
                    "training": [point._asdict() for point in curve.training],
                    "held_out": [point._asdict() for point in curve.held_out],
                    "compared": "held_out" if curve.on_held_out else "training",
                }
                for name, curve in curve_of.items()
            },
            "levels": [
                {
                    "kl": kl,
                    "best": {name: p and p._asdict() for name, c in curve_of.items() for p in [best(c.compared, kl)]},
                }
                for kl in kls
            ],
        },
        "curves": {
            name: {
                "iteration": list(run.view.history.numbers),
                **{field: [*map(_known, column)] for field in FIELDS if len(column := run.column(field))},
            }
            for name, run in runs.items()
        },
        "settings": {
            "differences": [{"key": key, "values": plain(values)} for key, values in settings.between],
            "within": settings.within,
            "only": settings.only,
        },
        "prompts": [
            {"prompt": prompt, "answers": {g.letter: _answer(one) for g, one in zip(groups, answers, strict=True)}}
            for prompt, answers in shared_prompts([group.runs[0].samples for group in groups], PROMPTS)
        ],
    }


def _run(name: str, run: ComparedRun) -> dict[str, Any]:
    started = run.view.started
    return {
        "letter": name,
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
        "changes": [
            {"key": one.key, "old": plain(one.old), "value": plain(one.value), "iteration": one.iteration}
            for one in run.view.settings
        ],
    }


def _numbers(groups: Sequence[RunGroup]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for measure in [measure for measures in sections(groups).values() for measure in measures]:
        found[measure.key] = {group.letter: _known(mean(measure.values(group))) for group in groups}
        ends = {group.letter: interval_of(measure, group) for group in groups}
        if measure.ends or any(ends.values()):
            found[f"{measure.key}_interval"] = {letter: list(pair) if pair else None for letter, pair in ends.items()}
    return found


def _differences(groups: Sequence[RunGroup]) -> list[dict[str, Any]]:
    from workbench.compare.differences import contrast, sentence  # here, because it takes NumPy

    first, *others = groups
    found = []
    for other in others:
        for measure in tested_measures(groups):
            one = contrast(measure, first, other)
            value, low, high = one.difference
            found.append(
                {
                    "key": measure.key,
                    "group": other.letter,
                    "from": first.letter,
                    "difference": _known(value),
                    "interval": None if one.excludes_zero is None else [low, high],
                    "pairs": one.pairs or None,
                    "values": {group.letter: [*map(_known, measure.values(group))] for group in (first, other)},
                    "excludes_zero": one.excludes_zero,
                    "sentence": sentence(measure, first, other, one),
                }
            )
    return found


def _answer(sample: Sample | None) -> dict[str, Any] | None:
    if sample is None:
        return None
    return {
        "iteration": sample.key.iteration,
        "completion": sample.completion,
        "score": _known(sample.score),
        "kl": _known(sample.kl),
        "tokens": sample.length,
        "truncated": sample.truncated,
    }


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
