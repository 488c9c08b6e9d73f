"""The comparison of runs, or of groups, as lines of text and as plain values. A single run is a group of one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from rich.cells import cell_len

from trainer.errors import counted
from trainer.events import plain
from trainer.runs.listing import RECENT
from workbench.compare.compared_run import ComparedRun, RunGroup, columns, mean, shared_prompts, windows_text
from workbench.compare.frontier import BEST, SEVERAL, best, curves_of, levels, plot
from workbench.compare.measures import NUMBER, RunMeasure, sections
from workbench.compare.settings import ComparedSettings, cautions, compared_settings, setting_lines
from workbench.kit.axes import scale_of, window_over
from workbench.kit.glyphs import block
from workbench.run.metrics import METRICS_OF_KIND, Metric
from workbench.run.sample_table import Sample
from workbench.text import (
    Line,
    Piece,
    Row,
    beside,
    duration,
    fit,
    fit_end,
    fit_name,
    notes,
    number,
    padded,
    score_text,
    table_lines,
    text_lines,
    visible,
)

VERSION = 1
"""Version of the plain values. Fields may be added; removing one or changing its meaning changes this number."""

FIELDS = (
    *("score_mean", "reward_mean", "kl", "entropy", "response_length", "explained_variance"),
    *("loss", "accuracy", "lead"),
)
_NAME = 16  # columns of a name beside its curve, at most
_LEAST_BARS = 10  # columns of a curve
_LABEL = 22  # columns of a number's name
_CELL = 60  # columns of a fact about a run, at most
_PLOT_LINES = 18
_PLOT_WIDTH = 110  # columns at most: a wider one is no clearer
_TEXT = 4000  # characters of a prompt or response, at most
_LINES = 8  # of a response
_LEAST_ANSWER = 34  # columns of a response beside others
_GAP = 3
_CUT = "✂"  # the response reached the length limit


def report_lines(groups: Sequence[RunGroup], width: int) -> Iterator[Line]:
    """Yield lines of at most `width` columns (60 or more).

    These are the runs, numbers, differences between groups, frontier, curves, settings and responses.
    """
    settings = compared_settings(groups)
    windows = windows_text([run for group in groups for run in group.runs])
    yield _heading("groups" if has_seeds(groups) else "runs", width)
    yield from _run_lines(groups, width)
    for caution in all_cautions(groups, settings):
        yield from notes(visible(f"! {caution}"), width)
    numbers = table_lines(_headings(groups), _number_rows(groups), width)
    parts = [
        ("numbers", f"means of iterations: the last {RECENT}, the best {windows}", numbers),
        ("score against KL", "up and to the left is better", _frontier_lines(groups, width)),
        ("curves", "on one scale; at the right the means of the first and the last five", curve_lines(groups, width)),
        ("settings", "that differ in config.toml", setting_lines(groups, settings, width)),
        ("the same prompts", "the newest response of each run", _answer_lines(groups, width)),
    ]
    if has_seeds(groups):
        from workbench.compare.differences import difference_lines  # here, because it takes NumPy

        parts.insert(1, ("differences", "95% intervals", difference_lines(groups, width)))
    for title, note, lines in parts:
        yield []
        yield _heading(title, width, note)
        yield from lines


def has_seeds(groups: Sequence[RunGroup]) -> bool:
    """Return whether a group has several runs."""
    return any(len(group.runs) > 1 for group in groups)


def all_cautions(groups: Sequence[RunGroup], settings: ComparedSettings) -> list[str]:
    """Return why the numbers may not measure the same thing and, of groups, which runs are not whole."""
    found = cautions(settings.between)
    if not has_seeds(groups):
        return found
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


def _heading(title: str, width: int, note: str = "") -> Line:
    """Return a heading over `width` columns, with a note if it fits."""
    shown = f"  {note} " if note and len(title) + len(note) + 6 <= width else " "
    return [(title, "strong"), (shown, "muted"), ("─" * max(width - len(title) - len(shown), 0), "muted")]


def _run_lines(groups: Sequence[RunGroup], width: int) -> Iterator[Line]:
    names = [fit_name(visible(group.name), width // 3).rstrip() for group in groups]
    rows = [[fit(visible(cell), _CELL).rstrip() for cell in _facts(group)] for group in groups]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    named = max(map(cell_len, names))
    for group, name, row in zip(groups, names, rows, strict=True):
        facts = "  ".join(padded(cell, size) for cell, size in zip(row, widths, strict=True))
        for place, line in enumerate(text_lines(facts.rstrip(), width - named - 5)):
            head = "" if place else f"{group.letter} {name}"
            yield [(f" {padded(head, named + 2)}", group.role), (f"  {line}", "text")]


def _facts(group: RunGroup) -> list[str]:
    """Return kind or seeds, state, iterations, time and model."""
    states = Counter(run.state for run in group.runs)
    parts = [*states] if len(states) == 1 else [f"{count} {state}" for state, count in states.items()]
    if damaged := sum(bool(run.problems) for run in group.runs):
        parts.append("damaged" if len(group.runs) == 1 else f"{damaged} damaged")
    kind = group.runs[0].kind
    if len(group.runs) > 1:
        seeds = list[str]()  # those in a row as a range, such as 0-4
        for _, together in groupby(enumerate(group.seeds), key=lambda one: one[1] - one[0]):
            row = [str(seed) for _, seed in together]
            seeds += [f"{row[0]}-{row[-1]}"] if len(row) > 2 else row
        seeds += ["unknown"] * (len(group.runs) - len(group.seeds))
        kind = f"{len(group.runs)} runs, seeds {' '.join(seeds)}"
    iterations = dict.fromkeys(f"{run.view.iteration}/{run.view.total}" for run in group.runs)
    seconds = sum(sum(run.column("seconds_total")) for run in group.runs)
    models = dict.fromkeys(run.view.started.model for run in group.runs if run.view.started)
    time = duration(seconds) if any(run.view.history for run in group.runs) else "-"
    return [kind, ", ".join(parts), " ".join(iterations), time, " ".join(models)]


def _headings(groups: Sequence[RunGroup]) -> list[Piece]:
    """Return the headings of a table's columns, with two single runs one for their difference."""
    return [*columns(groups), ("B - A", "muted")] if len(groups) == 2 and not has_seeds(groups) else columns(groups)


def _number_rows(groups: Sequence[RunGroup]) -> list[Row]:
    """Return the rows of the measures under their headings, each with its interval, and of how many runs have it.

    A measure that no run has is left out.
    """
    is_pair, rows = len(_headings(groups)) > len(groups), list[Row]()
    no_difference = [""] if is_pair else []
    for title, measures in sections(groups).items():
        found = list[Row]()
        for measure in measures:
            values = [measure.values(group) for group in groups]
            means = [mean(of_group) for of_group in values]
            cells = [measure.text(value) for value in means]
            if all(cell == "-" for cell in cells):
                continue
            label = f"  {fit(visible(measure.label), _LABEL).rstrip()}"
            found.append((label, measure.unit, [*cells, *([measure.difference(*means)] if is_pair else [])]))
            ends = [interval_of(measure, group) for group in groups]
            if any(ends):
                texts = [" to ".join(map(measure.text, pair)) if pair else "-" for pair in ends]
                found.append(("    95% interval", "", [*texts, *no_difference]))
            counts = [(sum(map(math.isfinite, of_group)), len(of_group)) for of_group in values]
            if any(0 < count < of for count, of in counts):
                found.append(("    runs", "", [*(f"{count} of {of}" for count, of in counts), *no_difference]))
        rows += [(title, "", []), *found] if found else []
    return rows


def interval_of(measure: RunMeasure, group: RunGroup) -> tuple[float, float] | None:
    """Return the 95% interval of a measure: a single run's own, else over the runs of a group; None without one."""
    low = high = math.nan
    if len(group.runs) == 1 and measure.ends:
        low, high = (measure.source(group.runs[0], end) for end in measure.ends)
    elif len(group.runs) > 1 and measure.tested:
        from workbench.compare.differences import group_mean  # here, because it takes NumPy

        _, low, high = group_mean(measure, group)
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None


def _frontier_lines(groups: Sequence[RunGroup], width: int) -> Iterator[Line]:
    """Yield the plot, and the best score of each group at a KL of at most so much."""
    of_groups = curves_of(groups)
    curves = [curve for of_group in of_groups for curve in of_group]
    if not any(curve.compared for curve in curves):
        yield from notes("no run has both a score and a KL in nats a sequence", width)
        return
    yield from plot(curves, min(width, _PLOT_WIDTH), _PLOT_LINES)
    legend, runs = ["KL to the right, nats a sequence"], [run for group in groups for run in group.runs]
    if trained := [run for run, curve in zip(runs, curves, strict=True) if curve.training]:
        legend.append(f"small letters: training batches, each point the mean of {windows_text(trained)} iterations")
    if any(curve.held_out for curve in curves):
        legend.append("capitals: held-out prompts")
    yield from notes("; ".join([*legend, f"{SEVERAL}: several runs", f"{BEST}: best so far"]), width)
    kls = levels(point for curve in curves for point in curve.compared)
    if not kls:
        return
    on_held_out = [group.letter for group, found in zip(groups, of_groups, strict=True) if found[0].on_held_out]
    source = "of the training batches"
    if all(curve.on_held_out or not curve.compared for curve in curves):
        source = "on held-out prompts"
    elif on_held_out:
        source += f", of {', '.join(on_held_out)} on held-out prompts,"
    rows = list[Row]()
    for kl in kls:
        scores = [mean(p.score for curve in found if (p := best(curve.compared, kl))) for found in of_groups]
        cells = [number(score, width=NUMBER) if math.isfinite(score) else "-" for score in scores]
        if len(_headings(groups)) > len(groups):
            apart = scores[1] - scores[0]
            cells.append(number(apart, signed=True, width=NUMBER) if math.isfinite(apart) else "")
        rows.append((f"  {kl:g}", "nats/seq", cells))
    yield []
    yield from notes(f"best score {source} at a KL of at most", width)
    yield from table_lines(_headings(groups), rows, width)


def curve_lines(groups: Sequence[RunGroup], width: int) -> Iterator[Line]:
    """Yield lines of at most `width` columns: for each metric its name, then a line for each group that has it."""
    for field in FIELDS:
        having = {
            group.letter: [run for run in group.runs if any(map(math.isfinite, run.column(field)))] for group in groups
        }
        if runs := [run for found in having.values() for run in found]:
            metrics = METRICS_OF_KIND[runs[0].view.history.kind]
            metric = next(metric for metric in metrics if metric.field == field)
            there = [(group, having[group.letter]) for group in groups if having[group.letter]]
            yield from _metric_lines(metric._replace(threshold=None), there, width)


def _metric_lines(metric: Metric, there: Sequence[tuple[RunGroup, list[ComparedRun]]], width: int) -> Iterator[Line]:
    """Yield the name of `metric`, and of each group the means of its runs. there: groups with the runs that have it."""
    names = [fit_name(visible(group.name), _NAME).rstrip() for group, _ in there]
    named = max(map(cell_len, names))
    ends = []
    for _, runs in there:
        both = zip(*(run.view.first_and_last(metric.field) for run in runs), strict=True)
        ends.append(" → ".join(number(mean(end) * metric.factor, metric.digits, width=NUMBER) for end in both))
    over = window_over([run.view.history for _, runs in there for run in runs])
    across = min(max(width - named - max(map(len, ends)) - 7, _LEAST_BARS), over.iterations)
    bars = []
    for _, runs in there:
        of_runs = [over.beside(run.view.history).columns(metric, across) for run in runs]
        bars.append([[bucket for bucket in column if bucket] for column in zip(*of_runs, strict=True)])
    scale = scale_of(((b.low, b.high) for of_group in bars for column in of_group for b in column), metric)
    iterations = f"iterations {over.first} to {over.last}" if over.iterations else ""
    unit = f" {metric.unit}" if metric.unit else ""
    low, high = (number(end, metric.digits, width=NUMBER) for end in (scale.low, scale.high))
    yield [(metric.label, "text"), (unit, "muted"), (f"   {low} to {high}, {iterations}", "muted")]
    for (group, _), name, end, of_group in zip(there, names, ends, bars, strict=True):
        line = "".join(block(scale.position(mean(b.mean for b in column))) if column else " " for column in of_group)
        yield [(f" {group.letter} {padded(name, named)}  {padded(line, across)}", group.role), (f"  {end}", "text")]


def _answer_lines(groups: Sequence[RunGroup], width: int) -> Iterator[Line]:
    """Yield the ends of the prompts that several groups answered, each with the answers of their first runs.

    They are side by side where they fit.
    """
    samples = [group.runs[0].samples for group in groups]
    shared = shared_prompts(samples)
    without = [group.letter for group, found in zip(groups, samples, strict=True) if not found]
    if without:
        yield from notes(f"no saved samples of {', '.join(without)}", width)
    if not shared and len(groups) - len(without) > 1:
        yield from notes("no two of the runs answered the same prompt in their newest samples", width)
    for place, (prompt, answers) in enumerate(shared):
        if place:
            yield []
        yield [("prompt ", "muted"), (fit_end(visible(prompt[-_TEXT:]), width - 7), "strong")]
        answered = [(group, answer) for group, answer in zip(groups, answers, strict=True) if answer]
        across = (width - _GAP * (len(answered) - 1)) // len(answered)
        if across >= _LEAST_ANSWER:
            blocks = [[[piece] for piece in _answer(*one, across)] for one in answered]
            yield from beside(blocks, across, (" │ ", "muted"))
        else:
            yield from ([piece] for one in answered for piece in _answer(*one, width))


def _answer(group: RunGroup, sample: Sample, width: int) -> list[Piece]:
    """Return a line of facts about a response, and its first lines."""
    facts = [group.letter, f"it {sample.key.iteration}", score_text(sample.score, 3)]
    facts.append(f"KL {number(sample.kl, 1, width=NUMBER)}")
    if sample.truncated:
        facts.append(_CUT)
    head = [(line, group.role) for line in text_lines("  ".join(facts), width)]
    text = visible(sample.completion[:_TEXT].strip("\n"))
    return head + [(line, "text") for line in text_lines(text, width, _LINES)]


def plain_values(groups: Sequence[RunGroup]) -> dict[str, Any]:
    """Return the comparison; unknown numbers are None, and shares are fractions of 1.

    A group has its letter; of several runs in a group, each has the letter and a number.
    """
    from workbench.compare.differences import difference_values  # here, because it takes NumPy

    settings, letters = compared_settings(groups), [group.letter for group in groups]
    numbers: dict[str, dict[str, Any]] = {}
    for measure in (measure for measures in sections(groups).values() for measure in measures):
        numbers[measure.key] = {group.letter: plain(mean(measure.values(group))) for group in groups}
        ends = {group.letter: interval_of(measure, group) for group in groups}
        if measure.ends or any(ends.values()):
            numbers[f"{measure.key}_interval"] = {letter: list(pair) if pair else None for letter, pair in ends.items()}
    curves = curves_of(groups)
    kls = levels(point for of_group in curves for curve in of_group for point in curve.compared)
    runs = {
        f"{group.letter}{n}" if len(group.runs) > 1 else group.letter: run
        for group in groups
        for n, run in enumerate(group.runs, 1)
    }
    curve_of = dict(zip(runs, (curve for of_group in curves for curve in of_group), strict=True))
    return {
        "comparison": VERSION,
        "groups": [{"letter": group.letter, "name": group.name, "seeds": group.seeds} for group in groups],
        "runs": [_run(name, run) for name, run in runs.items()],
        "cautions": all_cautions(groups, settings),
        "numbers": numbers,
        "differences": difference_values(groups) if has_seeds(groups) else [],
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
                **{field: [*map(plain, column)] for field in FIELDS if len(column := run.column(field))},
            }
            for name, run in runs.items()
        },
        "settings": {
            "differences": [{"key": key, "values": plain(values)} for key, values in settings.between],
            "within": settings.within,
            "only": settings.only,
        },
        "prompts": [
            {"prompt": prompt, "answers": dict(zip(letters, map(_plain_answer, answers), strict=True))}
            for prompt, answers in shared_prompts([group.runs[0].samples for group in groups])
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


def _plain_answer(sample: Sample | None) -> dict[str, Any] | None:
    if sample is None:
        return None
    return {
        "iteration": sample.key.iteration,
        "completion": sample.completion,
        "score": plain(sample.score),
        "kl": plain(sample.kl),
        "tokens": sample.length,
        "truncated": sample.truncated,
    }
