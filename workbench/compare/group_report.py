"""The comparison of groups of runs as lines of text, and as plain values for JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from rich.cells import cell_len

from trainer.confidence import Interval
from trainer.events import plain
from trainer.plurals import counted
from workbench.columns import fit, padded
from workbench.compare.compared_run import ComparedRun
from workbench.compare.groups import MEASURES, Contrast, Group, GroupMeasure, Value, contrast, group_mean, values_of
from workbench.compare.lines import NUMBER, Row, heading, notes, role_of, table_lines, wrapped
from workbench.compare.report import VERSION, run_values
from workbench.compare.settings import (
    GroupSettings,
    cautions,
    change_text,
    difference_lines,
    settings_of_groups,
)
from workbench.kit.lines import Line, Piece
from workbench.numbers import number
from workbench.text import visible

_NAME = 16  # columns of a group's name in a table
_MOST_DIGITS = 6
_CHANGES = 5  # shown of each run


class _Measured(NamedTuple):
    """A measure of all groups. contrasts: of every group but the first."""

    measure: GroupMeasure
    values: list[list[Value]]
    means: list[Interval]
    contrasts: list[Contrast]


def group_report_lines(groups: Sequence[Group], width: int) -> Iterator[Line]:
    """Yield lines of at most `width` columns (60 or more): groups, measures, what they tell, and settings."""
    settings = settings_of_groups(groups)
    measured = _measured(groups)
    yield from _group_lines(groups, width)
    for caution in group_cautions(groups, settings):
        yield from notes(visible(f"! {caution}"), width)
    yield []
    yield heading("measures", width, "means over the runs of a group")
    yield from _table(groups, measured, width)
    yield []
    yield heading("what the runs tell", width, "by 95% intervals")
    for place, other in enumerate(groups[1:]):
        told = [(one.measure, one.contrasts[place]) for one in measured]
        if all(found.is_told is None for _, found in told):
            yield from _hanging(_without_intervals(groups[0], other), "muted", width)
            continue
        for measure, found in told:
            text = sentence(measure, groups[0], other, found)
            yield from _hanging(text, "text" if found.is_told else "muted", width)
    yield []
    yield from notes(_chance(measured), width)
    yield []
    yield heading("settings", width, "that differ between the groups")
    yield from _settings(groups, settings, width)


def sentence(measure: GroupMeasure, first: Group, other: Group, found: Contrast) -> str:
    """Return what the data tell about a measure of two groups, safe to print."""
    a, b = visible(first.name), visible(other.name)
    value, low, high = found.difference
    if not math.isfinite(value):
        lacking = [name for name, runs in ((a, found.first), (b, found.other)) if not runs]
        return f"no run of {' or '.join(lacking or [a, b])} has {measure.missing}"
    noun = f" {measure.noun}" if measure.noun else ""
    if found.is_told:
        sign = 1 if value > 0 else -1
        low, high = sorted((sign * low, sign * high))
        shown, *ends = _texts((sign * value, low, high), measure.digits)
        amount = f"{shown} {measure.unit}" if measure.unit and measure.noun else shown
        by = f"{ends[0]} to {ends[1]}, {_runs(found)}"
        return f"{b} {measure.verb} {amount} {'more' if sign > 0 else 'less'}{noun} than {a} {measure.where} ({by})"
    question = f"whether {b} or {a} {measure.verb} more{noun} {measure.where}"
    if found.is_told is None:
        runs = f"{counted(found.other, 'run')} of {b} and {found.first} of {a}"
        (shown,) = _texts((value,), measure.digits, signed=True)
        return f"{runs} do not tell {question}: the difference is {shown}, without an interval"
    ends = _texts((low, high), measure.digits, signed=True)
    return f"{_runs(found)} do not tell {question}: the difference is {ends[0]} to {ends[1]}"


def group_cautions(groups: Sequence[Group], settings: GroupSettings) -> list[str]:
    """Return why the numbers of the groups may not measure the same thing, and which runs are not whole."""
    found = cautions(settings.between)
    for group in groups:
        if keys := settings.within.get(group.letter):
            found.append(f"the runs of {group.name} differ in more than their seed ({', '.join(keys)})")
    first, *others = groups
    for other in others:
        shared, most = len({*first.seeds} & {*other.seeds}), max(len(first.runs), len(other.runs))
        if min(len(first.runs), len(other.runs)) > 1 and shared < most:
            how = f"use these {counted(shared, 'pair')} alone" if shared > 1 else "are unpaired"
            found.append(f"{first.name} and {other.name} share {counted(shared, 'seed')}: the differences {how}")
    runs = [(group, run) for group in groups for run in group.runs]
    devices = {run.view.started.device for _, run in runs if run.view.started}
    if len(devices) > 1:
        found.append(f"different devices: the times are not comparable ({', '.join(sorted(devices))})")
    lengths = {len(run.view.history) for _, run in runs}
    if len(lengths) > 1:
        between = f"{min(lengths)} to {max(lengths)} iterations"
        found.append(f"the runs have {between}: the best of a longer run is higher by chance alone")
    for group, run in runs:
        if run.state != "done":
            where = f"at iteration {run.view.iteration} of {run.view.total}"
            found.append(f"{run.name} of {group.name} is not done: {run.state} {where}")
        if run.problems:
            found.append(f"{run.name} of {group.name} is damaged: it counts as far as it can be read")
    return found


def group_values(groups: Sequence[Group]) -> dict[str, Any]:
    """Return the object that docs/compare.md describes; unknown numbers are None."""
    settings = settings_of_groups(groups)
    names = {group.letter: group.name for group in groups}
    return {
        "comparison": VERSION,
        "groups": [
            {"name": group.name, "seeds": group.seeds, "runs": [_run(run) for run in group.runs]} for group in groups
        ],
        "cautions": group_cautions(groups, settings),
        "measures": [_measure_values(groups, one) for one in _measured(groups)],
        "settings": {
            "differences": [
                {"key": key, "values": {names[letter]: plain(value) for letter, value in values.items()}}
                for key, values in settings.between
            ],
            "within": {group.name: settings.within.get(group.letter, []) for group in groups},
        },
    }


def _measured(groups: Sequence[Group]) -> list[_Measured]:
    found = []
    for measure in MEASURES:
        first, *others = values = [values_of(measure, group) for group in groups]
        contrasts = [contrast(first, other) for other in others]
        found.append(_Measured(measure, values, [group_mean(measure, of_group) for of_group in values], contrasts))
    return found


def _group_lines(groups: Sequence[Group], width: int) -> Iterator[Line]:
    yield heading("groups", width)
    names = [fit(visible(group.name), width // 3).rstrip() for group in groups]
    named = max(map(cell_len, names))
    for group, name in zip(groups, names, strict=True):
        for place, line in enumerate(wrapped(visible(_facts(group)), width - named - 3)):
            head = "" if place else name
            yield [(f" {padded(head, named)}", role_of(group.letter)), (f"  {line}", "text")]


def _facts(group: Group) -> str:
    seeds = [*_ranges(group.seeds), *["unknown"] * (len(group.runs) - len(group.seeds))]
    states = Counter(run.state for run in group.runs)
    damaged = sum(bool(run.problems) for run in group.runs)
    one_state = len(states) == 1
    parts = [*states] if one_state else [f"{count} {state}" for state, count in states.items()]
    models = dict.fromkeys(run.view.started.model for run in group.runs if run.view.started)
    return ", ".join(
        [
            counted(len(group.runs), "run"),
            f"{'seed' if len(group.runs) == 1 else 'seeds'} {' '.join(seeds)}",
            *parts,
            *([f"{damaged} damaged"] if damaged else []),
            *models,
        ]
    )


def _ranges(seeds: Sequence[int]) -> list[str]:
    """Return ascending `seeds` with those in a row as a range, such as 0-4."""
    rows = [[seed for _, seed in row] for _, row in groupby(enumerate(seeds), key=lambda one: one[1] - one[0])]
    return [text for row in rows for text in ([f"{row[0]}-{row[-1]}"] if len(row) > 2 else map(str, row))]


def _table(groups: Sequence[Group], measured: Sequence[_Measured], width: int) -> Iterator[Line]:
    names = [fit(visible(group.name), _NAME).rstrip() for group in groups]
    columns: list[Piece] = [(name, role_of(group.letter)) for name, group in zip(names, groups, strict=True)]
    columns += [(f"{name} - {names[0]}", "muted") for name in names[1:]]
    rows: list[Row] = []
    for measure, values, means, contrasts in measured:
        having = [sum(math.isfinite(value.number) for value in of_group) for of_group in values]
        cells = [number(mean.value, measure.digits, width=NUMBER) for mean in means]
        differences = [found.difference for found in contrasts]
        cells += [_texts((found.value,), measure.digits, signed=True)[0] for found in differences]
        rows.append(Row(measure.label, measure.unit, cells))
        ends = [_interval_text(mean, measure.digits) for mean in means]
        ends += [_interval_text(found, measure.digits, signed=True) for found in differences]
        if any(end != "-" for end in ends):
            rows.append(Row("  95% interval", "", ends))
        if any(count < len(group.runs) for count, group in zip(having, groups, strict=True)):
            of_groups = [f"{count} of {len(group.runs)}" for count, group in zip(having, groups, strict=True)]
            of_groups += [f"{one.pairs} pairs" if one.pairs else f"{one.other} and {one.first}" for one in contrasts]
            rows.append(Row("  runs", "", of_groups))
    yield from table_lines(columns, rows, width)


def _interval_text(found: Interval, digits: int, *, signed: bool = False) -> str:
    if not (math.isfinite(found.low) and math.isfinite(found.high)):
        return "-"
    return " to ".join(_texts((found.low, found.high), digits, signed=signed))


def _texts(values: Sequence[float], digits: int, *, signed: bool = False) -> list[str]:
    """Format `values` with at least `digits` decimals, and as many more as show that one of them is not 0."""
    for decimals in range(digits, _MOST_DIGITS + 1):
        texts = [number(value + 0.0, decimals, signed=signed, width=NUMBER) for value in values]  # -0.0 becomes 0.0
        if all(
            value == 0 or not math.isfinite(value) or float(text) for value, text in zip(values, texts, strict=True)
        ):
            return texts
    return [f"{value + 0.0:{'+' if signed else ''}.1e}" for value in values]


def _runs(found: Contrast) -> str:
    return counted(found.pairs, "pair") if found.pairs else f"{found.other} and {found.first} unpaired runs"


def _without_intervals(first: Group, other: Group) -> str:
    """Return the sentence about two groups whose runs are too few for any interval."""
    a, b = visible(first.name), visible(other.name)
    runs = f"{counted(len(other.runs), 'run')} of {b} and {len(first.runs)} of {a}"
    return f"{runs} tell nothing about what differs: two of each with the same measure are needed"


def _hanging(text: str, role: str, width: int) -> Iterator[Line]:
    """Yield `text` in lines of at most `width` columns; all but the first are indented."""
    for place, line in enumerate(wrapped(text, width - 3)):
        yield [(f"{'   ' if place else ' '}{line}", role)]


def _chance(measured: Sequence[_Measured]) -> str:
    """Return the warning that some of many comparisons differ by chance."""
    made = sum(found.is_told is not None for one in measured for found in one.contrasts)
    if not made:
        return "no measure has an interval: two runs in each group are needed"
    return (
        f"{len(measured)} measures were looked at, in {counted(made, 'comparison')}: where nothing differs, about 1 "
        "of 20 intervals still excludes 0. Judge by the measure that you chose beforehand"
    )


def _settings(groups: Sequence[Group], settings: GroupSettings, width: int) -> Iterator[Line]:
    there = [group for group in groups if any(run.config is not None for run in group.runs)]
    if not settings.between and len(there) > 1:
        yield from notes("no difference in settings between the groups", width)
    names: list[Piece] = [(fit(visible(one.name), _NAME).rstrip(), role_of(one.letter)) for one in there]
    yield from difference_lines(names, names, settings.between, width)
    for group in groups:
        for run in group.runs:
            for change in run.view.settings[-_CHANGES:]:
                yield from notes(f"{visible(run.name)}: {change_text(change)}", width)
            if (more := len(run.view.settings) - _CHANGES) > 0:
                yield from notes(f"{visible(run.name)}: and {counted(more, 'earlier change')} during training", width)


def _run(run: ComparedRun) -> dict[str, Any]:
    changes = [
        {"key": one.key, "old": plain(one.old), "value": plain(one.value), "iteration": one.iteration}
        for one in run.view.settings
    ]
    return {key: value for key, value in run_values(run).items() if key != "letter"} | {"changes": changes}


def _measure_values(groups: Sequence[Group], one: _Measured) -> dict[str, Any]:
    first, *others = groups
    of_groups = {
        group.name: {
            "mean": _known(mean.value),
            "interval": _ends(mean),
            "runs": sum(math.isfinite(value.number) for value in values),
            "values": [_known(value.number) for value in values],
        }
        for group, values, mean in zip(groups, one.values, one.means, strict=True)
    }
    differences = [
        {
            "group": other.name,
            "from": first.name,
            "difference": _known(found.difference.value),
            "interval": _ends(found.difference),
            "pairs": found.pairs or None,
            "runs": {first.name: found.first, other.name: found.other},
            "excludes_zero": found.is_told,
            "sentence": sentence(one.measure, first, other, found),
        }
        for other, found in zip(others, one.contrasts, strict=True)
    ]
    return {"key": one.measure.key, "unit": one.measure.unit, "groups": of_groups, "differences": differences}


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _ends(found: Interval) -> list[float] | None:
    return [found.low, found.high] if math.isfinite(found.low) and math.isfinite(found.high) else None
