"""The comparison of runs, or of groups of runs, as lines of text. A single run is a group of one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING

from rich.cells import cell_len

from trainer.plurals import counted
from trainer.runs.listing import RECENT
from workbench.compare.compared_run import (
    PROMPTS,
    ComparedRun,
    RunGroup,
    SharedPrompt,
    columns,
    mean,
    shared_prompts,
    windows_text,
)
from workbench.compare.frontier import BEST, SEVERAL, Curve, best_scores, curves_of, levels, plot
from workbench.compare.lines import NUMBER, Row, heading, notes, role_of, table_lines, wrapped
from workbench.compare.measures import STRETCH, RunMeasure, difference_text, sections, value_text
from workbench.compare.settings import ComparedSettings, cautions, compared_settings, setting_lines
from workbench.kit.axes import scale_of, window_over
from workbench.kit.glyphs import block
from workbench.numbers import duration, number, score_text
from workbench.run.metrics import METRICS_OF_KIND, Metric
from workbench.run.sample_table import Sample
from workbench.text import Line, Piece, fit, fit_end, fit_name, padded, visible

if TYPE_CHECKING:
    from workbench.compare.differences import Contrast  # it takes NumPy, which the screen does without

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
    yield from _run_lines(groups, width)
    for caution in all_cautions(groups, settings):
        yield from notes(visible(f"! {caution}"), width)
    yield []
    yield from _number_lines(groups, width)
    if has_seeds(groups):
        yield []
        yield heading("differences", width, "95% intervals")
        yield from _difference_lines(groups, width)
    yield []
    yield heading("score against KL", width, "up and to the left is better")
    yield from _frontier_lines(groups, width)
    yield []
    yield heading("curves", width, "on one scale; at the right the means of the first and the last five")
    yield from curve_lines(groups, width)
    yield []
    yield heading("settings", width, "that differ in config.toml")
    yield from setting_lines(groups, settings, width)
    yield []
    yield heading("the same prompts", width, "the newest response of each run")
    yield from _answer_lines(groups, width)


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


def _run_lines(groups: Sequence[RunGroup], width: int) -> Iterator[Line]:
    yield heading("groups" if has_seeds(groups) else "runs", width)
    names = [fit_name(visible(group.name), width // 3).rstrip() for group in groups]
    rows = [[fit(visible(cell), _CELL).rstrip() for cell in _facts(group)] for group in groups]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    named = max(map(cell_len, names))
    for group, name, row in zip(groups, names, rows, strict=True):
        facts = "  ".join(padded(cell, size) for cell, size in zip(row, widths, strict=True))
        for place, line in enumerate(wrapped(facts.rstrip(), width - named - 5)):
            head = "" if place else f"{group.letter} {name}"
            yield [(f" {padded(head, named + 2)}", role_of(group.letter)), (f"  {line}", "text")]


def _facts(group: RunGroup) -> list[str]:
    """Return kind or seeds, state, iterations, time and model."""
    first = group.runs[0]
    states = Counter(run.state for run in group.runs)
    parts = [*states] if len(states) == 1 else [f"{count} {state}" for state, count in states.items()]
    if damaged := sum(bool(run.problems) for run in group.runs):
        parts.append("damaged" if len(group.runs) == 1 else f"{damaged} damaged")
    kind = first.kind
    if len(group.runs) > 1:
        seeds = " ".join([*_ranges(group.seeds), *["unknown"] * (len(group.runs) - len(group.seeds))])
        kind = f"{len(group.runs)} runs, seeds {seeds}"
    iterations = dict.fromkeys(f"{run.view.iteration}/{run.view.total}" for run in group.runs)
    seconds = sum(sum(run.column("seconds_total")) for run in group.runs)
    models = dict.fromkeys(run.view.started.model for run in group.runs if run.view.started)
    time = duration(seconds) if any(run.view.history for run in group.runs) else "-"
    return [kind, ", ".join(parts), " ".join(iterations), time, " ".join(models)]


def _ranges(seeds: Sequence[int]) -> list[str]:
    """Return ascending `seeds` with those in a row as a range, such as 0-4."""
    rows = [[seed for _, seed in row] for _, row in groupby(enumerate(seeds), key=lambda one: one[1] - one[0])]
    return [text for row in rows for text in ([f"{row[0]}-{row[-1]}"] if len(row) > 2 else map(str, row))]


def _number_lines(groups: Sequence[RunGroup], width: int) -> Iterator[Line]:
    windows = windows_text([run for group in groups for run in group.runs])
    yield heading("numbers", width, f"means of iterations: the last {RECENT}, the best {windows}")
    rows: list[Row] = []
    for section in sections(groups):
        found = [row for measure in section.measures for row in _measure_rows(measure, groups)]
        if found:
            rows += [Row(section.title), *found]
    yield from table_lines(_headings(groups), rows, width)


def _headings(groups: Sequence[RunGroup]) -> list[Piece]:
    """Return the headings of a table's columns, with two runs one for their difference."""
    return [*columns(groups), ("B - A", "muted")] if _is_pair(groups) else columns(groups)


def _is_pair(groups: Sequence[RunGroup]) -> bool:
    """Return whether two single runs are compared."""
    return len(groups) == 2 and not has_seeds(groups)


def _measure_rows(measure: RunMeasure, groups: Sequence[RunGroup]) -> Iterator[Row]:
    """Yield the row of a measure, of its interval, and of how many runs have it; nothing if no run has."""
    values = [measure.values(group) for group in groups]
    means = [mean(of_group) for of_group in values]
    cells = [value_text(measure, value) for value in means]
    if all(cell == "-" for cell in cells):
        return
    difference = [difference_text(measure, *means)] if _is_pair(groups) else []
    yield Row(f"  {fit(visible(measure.label), _LABEL).rstrip()}", measure.unit, [*cells, *difference])
    ends = [interval_of(measure, group) for group in groups]
    if any(ends):
        texts = [" to ".join(value_text(measure, end) for end in found) if found else "-" for found in ends]
        yield Row("    95% interval", "", [*texts, *([""] if difference else [])])
    having = [sum(map(math.isfinite, of_group)) for of_group in values]
    if any(0 < count < len(group.runs) for count, group in zip(having, groups, strict=True)):
        counts = [f"{count} of {len(group.runs)}" for count, group in zip(having, groups, strict=True)]
        yield Row("    runs", "", [*counts, *([""] if difference else [])])


def interval_of(measure: RunMeasure, group: RunGroup) -> tuple[float, float] | None:
    """Return the 95% interval of a measure: a single run's own, else over the runs of a group; None without one."""
    low = high = math.nan
    if len(group.runs) == 1 and measure.interval:
        low, high = measure.interval(group.runs[0])
    elif len(group.runs) > 1 and measure.tested:
        from workbench.compare.differences import group_mean  # here, because it takes NumPy

        _, low, high = group_mean(measure, group)
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None


def _difference_lines(groups: Sequence[RunGroup], width: int) -> Iterator[Line]:
    from workbench.compare.differences import contrast  # here, because it takes NumPy

    first, *others = groups
    tested = tested_measures(groups)
    comparisons = 0
    for other in others:
        found = [(measure, contrast(measure, first, other)) for measure in tested]
        comparisons += sum(one.excludes_zero is not None for _, one in found)
        if all(one.excludes_zero is None for _, one in found):
            text = f"{visible(other.name)} - {visible(first.name)}: no interval, which takes two runs of each"
            yield from _hanging(text, "muted", width)
            continue
        for measure, one in found:
            yield from _hanging(sentence(measure, first, other, one), "text" if one.excludes_zero else "muted", width)
    if comparisons:
        chance = "where nothing differs, about 1 of 20 intervals still excludes 0"
        yield []
        yield from notes(
            f"{len(tested)} measures in {counted(comparisons, 'comparison')}: {chance}. Judge by the measure that you "
            "chose beforehand",
            width,
        )


def tested_measures(groups: Sequence[RunGroup]) -> list[RunMeasure]:
    """Return the measures by which groups are compared over their seeds."""
    return [measure for section in sections(groups) for measure in section.measures if measure.tested]


def sentence(measure: RunMeasure, first: RunGroup, other: RunGroup, found: Contrast) -> str:
    """Return the difference in a measure of two groups, safe to print; it is unclear if its interval contains 0."""
    subject = f"{visible(other.name)} - {visible(first.name)}, {measure.label}"
    value, low, high = found.difference
    if not math.isfinite(value):
        lacking = [group for group, runs in ((first, found.first), (other, found.other)) if not runs]
        if any(len(run.view.history) >= STRETCH for group in lacking for run in group.runs):
            return f"{subject}: not measured in any run of {' or '.join(visible(group.name) for group in lacking)}"
        return f"{subject}: not enough iterations to compare ({STRETCH} needed)"
    runs = counted(found.pairs, "pair") if found.pairs else f"{found.other} and {found.first} unpaired runs"
    unit = f" {measure.unit}" if measure.unit else ""
    amount = f"{_signed(measure, value)}{unit}"
    if found.excludes_zero is None:
        return f"{subject}: {amount} without an interval ({runs})"
    ends = f"{_signed(measure, low)} to {_signed(measure, high)}"
    return f"{subject}: {amount} ({ends}, {runs})" if found.excludes_zero else f"{subject}: unclear, {ends} ({runs})"


def _signed(measure: RunMeasure, value: float) -> str:
    """Format a difference; one that its decimals would round to 0 with as many as show that it is not."""
    text = value_text(measure, value)
    if value and not any(digit in text for digit in "123456789"):
        text = f"{value:.1e}"
    return text if text.startswith("-") else f"+{text}"


def _hanging(text: str, role: str, width: int) -> Iterator[Line]:
    """Yield `text` in lines of at most `width` columns; all but the first are indented."""
    for place, line in enumerate(wrapped(text, width - 3)):
        yield [(f"{'   ' if place else ' '}{line}", role)]


def _frontier_lines(groups: Sequence[RunGroup], width: int) -> Iterator[Line]:
    """Yield the plot, and the best score of each group at a KL of at most so much."""
    found = curves_of(groups)
    curves = [curve for of_group in found for curve in of_group]
    if not any(curve.compared for curve in curves):
        yield from notes("no run has both a score and a KL in nats a sequence", width)
        return
    yield from plot(curves, min(width, _PLOT_WIDTH), _PLOT_LINES)
    yield from notes(_legend(groups, curves), width)
    if kls := levels(point for curve in curves for point in curve.compared):
        yield []
        yield from notes(_compared_by(groups, found), width)
        yield from table_lines(_headings(groups), [_level_row(groups, found, kl) for kl in kls], width)


def _legend(groups: Sequence[RunGroup], curves: Sequence[Curve]) -> str:
    parts = ["KL to the right, nats a sequence"]
    runs = [run for group in groups for run in group.runs]
    if trained := [run for run, curve in zip(runs, curves, strict=True) if curve.training]:
        parts.append(f"small letters: training batches, each point the mean of {windows_text(trained)} iterations")
    if any(curve.held_out for curve in curves):
        parts.append("capitals: held-out prompts")
    return "; ".join([*parts, f"{SEVERAL}: several runs", f"{BEST}: best so far"])


def _compared_by(groups: Sequence[RunGroup], found: Sequence[Sequence[Curve]]) -> str:
    """Return the line above the table of KLs: which scores it compares."""
    on_held_out = [group.letter for group, curves in zip(groups, found, strict=True) if curves[0].on_held_out]
    if not on_held_out:
        return "best score of the training batches at a KL of at most"
    if all(curve.on_held_out or not curve.compared for curves in found for curve in curves):
        return "best score on held-out prompts at a KL of at most"
    return f"best score of the training batches, of {', '.join(on_held_out)} on held-out prompts, at a KL of at most"


def _level_row(groups: Sequence[RunGroup], found: Sequence[Sequence[Curve]], kl: float) -> Row:
    scores = [best_scores(curves, kl) for curves in found]
    cells = [number(score, width=NUMBER) if math.isfinite(score) else "-" for score in scores]
    if _is_pair(groups):
        difference = scores[1] - scores[0]
        cells.append(number(difference, signed=True, width=NUMBER) if math.isfinite(difference) else "")
    return Row(f"  {kl:g}", "nats/seq", cells)


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
        yield [
            (f" {group.letter} {padded(name, named)}  ", role_of(group.letter)),
            (padded(line, across), role_of(group.letter)),
            (f"  {end}", "text"),
        ]


def _answer_lines(groups: Sequence[RunGroup], width: int) -> Iterator[Line]:
    """Yield the prompts that several groups answered, each with the answers of their first runs."""
    samples = [group.runs[0].samples for group in groups]
    shared = shared_prompts(samples, PROMPTS)
    without = [group.letter for group, found in zip(groups, samples, strict=True) if not found]
    if without:
        yield from notes(f"no saved samples of {', '.join(without)}", width)
    if not shared and len(groups) - len(without) > 1:
        yield from notes("no two of the runs answered the same prompt in their newest samples", width)
    for place, one in enumerate(shared):
        if place:
            yield []
        yield from _prompt_lines(groups, one, width)


def _prompt_lines(groups: Sequence[RunGroup], shared: SharedPrompt, width: int) -> Iterator[Line]:
    """Yield the end of a prompt, then the answers, side by side if they fit."""
    yield [("prompt ", "muted"), (fit_end(visible(shared.prompt[-_TEXT:]), width - 7), "strong")]
    answered = [(group.letter, answer) for group, answer in zip(groups, shared.answers, strict=True) if answer]
    across = (width - _GAP * (len(answered) - 1)) // len(answered)
    if across >= _LEAST_ANSWER:
        blocks = [_answer(letter, answer, across) for letter, answer in answered]
        for lines in zip_longest(*blocks, fillvalue=("", "text")):
            cells = [(padded(text, across), role) for text, role in lines]
            yield [piece for cell in cells for piece in ((" │ ", "muted"), cell)][1:]
    else:
        for letter, answer in answered:
            yield from ([line] for line in _answer(letter, answer, width))


def _answer(letter: str, sample: Sample, width: int) -> list[tuple[str, str]]:
    facts = [letter, f"it {sample.key.iteration}", score_text(sample.score, 3)]
    facts.append(f"KL {number(sample.kl, 1, width=NUMBER)}")
    if sample.truncated:
        facts.append(_CUT)
    head = [(line, role_of(letter)) for line in wrapped("  ".join(facts), width)]
    text = visible(sample.completion[:_TEXT].strip("\n"))
    return head + [(line, "text") for line in wrapped(text, width, _LINES)]
