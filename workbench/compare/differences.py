"""Differences between groups of runs over seeds, with 95% intervals, and in words. It takes NumPy.

One run says little about a method, because another seed can score more or less than another setting does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from trainer.confidence import Interval, mean_interval, t_quantile
from trainer.errors import counted
from trainer.evaluation.intervals import Floats
from trainer.events import plain
from workbench.compare.compared_run import RunGroup
from workbench.compare.measures import STRETCH, RunMeasure, tested_measures
from workbench.text import Line, notes, text_lines, visible


class Contrast(NamedTuple):
    """A measure of a group minus that of the first group.

    difference: its interval is NaN if there are too few runs. pairs: seeds that it is paired by; 0 if it is unpaired.
    first, other: runs of each group that it is computed from.
    """

    difference: Interval
    pairs: int
    first: int
    other: int

    @property
    def excludes_zero(self) -> bool | None:
        """Return whether the data show which group has more. None without an interval."""
        low, high = self.difference.low, self.difference.high
        return (low > 0 or high < 0) if math.isfinite(low) and math.isfinite(high) else None


def group_mean(measure: RunMeasure, group: RunGroup) -> Interval:
    """Estimate the mean over the runs that have the measure; it has no interval for a single one.

    The interval is cut to what the measure can be. An estimate of the KL can be below 0, which then ends it.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean, low, high = mean_interval(_finite(measure.values(group)))
    least, most = min(measure.low, mean), max(measure.high, mean)
    return Interval(mean, *(min(max(end, least), most) if math.isfinite(end) else end for end in (low, high)))


def contrast(measure: RunMeasure, first: RunGroup, other: RunGroup) -> Contrast:
    """Estimate by how much `other` exceeds `first`, with a 95% interval.

    It is that of the differences between runs of one seed if at least two seeds have the measure in both groups, else
    Welch's interval of all runs that have it. It is cut to what can be while either mean is as estimated, which moves
    no end across 0: two runs leave a difference in time wide open, but not by more than the time that one took.
    """
    of_first, of_other = (
        {
            run.seed: value
            for run, value in zip(group.runs, measure.values(group), strict=True)
            if run.seed is not None and math.isfinite(value)
        }
        for group in (first, other)
    )
    shared = sorted(of_first.keys() & of_other.keys())
    with np.errstate(over="ignore", invalid="ignore"):
        if len(shared) > 1:
            ours, theirs = (np.array([of_group[seed] for seed in shared]) for of_group in (of_first, of_other))
            found = mean_interval(theirs - ours)
        else:
            ours, theirs = _finite(measure.values(first)), _finite(measure.values(other))
            found = welch_interval(ours, theirs)
        if math.isfinite(found.low) and math.isfinite(found.high):
            least = max(measure.low - ours.mean(), theirs.mean() - measure.high)
            most = min(measure.high - ours.mean(), theirs.mean() - measure.low)
            low, high = max(found.low, min(least, found.value, 0.0)), min(found.high, max(most, found.value, 0.0))
            found = found._replace(low=float(low), high=float(high))
    return Contrast(found, len(shared) if len(shared) > 1 else 0, len(ours), len(theirs))


def welch_interval(first: Floats, other: Floats) -> Interval:
    """Estimate the mean of `other` [M] minus that of `first` [N], whose deviations may differ.

        d +- t se,   se^2 = s_1^2 / N + s_2^2 / M,   df = se^4 / (s_1^4 / (N^2 (N - 1)) + s_2^4 / (M^2 (M - 1)))

    df is rounded down, which makes the interval a little wider. Its bounds are NaN if N or M is below 2, all is NaN if
    one is 0. Welch 1947.
    """
    if not (len(first) and len(other)):
        return Interval(math.nan, math.nan, math.nan)
    difference = float(other.mean() - first.mean())
    if min(len(first), len(other)) < 2:
        return Interval(difference, math.nan, math.nan)
    parts = [float(values.var(ddof=1)) / len(values) for values in (first, other)]
    if not sum(parts):
        return Interval(difference, difference, difference)
    shares = [part / sum(parts) for part in parts]  # squares of the parts themselves could underflow
    if not all(map(math.isfinite, shares)):
        return Interval(difference, math.nan, math.nan)
    df = 1 / sum(share**2 / (len(values) - 1) for share, values in zip(shares, (first, other), strict=True))
    margin = t_quantile(max(int(df), 1)) * math.sqrt(sum(parts))
    return Interval(difference, difference - margin, difference + margin)


def difference_lines(groups: Sequence[RunGroup], width: int) -> Iterator[Line]:
    """Yield the differences of each other group from the first, in lines of at most `width` columns."""
    first, *others = groups
    tested, comparisons = tested_measures(groups), 0
    for other in others:
        found = [(measure, contrast(measure, first, other)) for measure in tested]
        intervals = sum(one.excludes_zero is not None for _, one in found)
        comparisons += intervals
        sentences = [
            (sentence(measure, first, other, one), "text" if one.excludes_zero else "muted") for measure, one in found
        ]
        none = f"{visible(other.name)} - {visible(first.name)}: no interval, which takes two runs of each"
        for text, role in sentences if intervals else [(none, "muted")]:
            for place, line in enumerate(text_lines(text, width - 3)):
                yield [(f"{'   ' if place else ' '}{line}", role)]
    if comparisons:
        chance = "where nothing differs, about 1 of 20 intervals still excludes 0"
        counts = f"{len(tested)} measures in {counted(comparisons, 'comparison')}"
        yield []
        yield from notes(f"{counts}: {chance}. Judge by the measure that you chose beforehand", width)


def difference_values(groups: Sequence[RunGroup]) -> list[dict[str, Any]]:
    """Return the differences as plain values, for JSON."""
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
                    "difference": plain(value),
                    "interval": None if one.excludes_zero is None else [low, high],
                    "pairs": one.pairs or None,
                    "values": {group.letter: [*map(plain, measure.values(group))] for group in (first, other)},
                    "excludes_zero": one.excludes_zero,
                    "sentence": sentence(measure, first, other, one),
                }
            )
    return found


def sentence(measure: RunMeasure, first: RunGroup, other: RunGroup, found: Contrast) -> str:
    """Return the difference in a measure of two groups, safe to print; it is unclear if its interval contains 0."""

    def signed(value: float) -> str:
        """Format a difference; one that its decimals would round to 0 with as many as show that it is not."""
        text = measure.text(value)
        if value and not any(digit in text for digit in "123456789"):
            text = f"{value:.1e}"
        return text if text.startswith("-") else f"+{text}"

    subject = f"{visible(other.name)} - {visible(first.name)}, {measure.label}"
    value, low, high = found.difference
    if not math.isfinite(value):
        lacking = [group for group, runs in ((first, found.first), (other, found.other)) if not runs]
        if any(len(run.view.history) >= STRETCH for group in lacking for run in group.runs):
            return f"{subject}: not measured in any run of {' or '.join(visible(group.name) for group in lacking)}"
        return f"{subject}: not enough iterations to compare ({STRETCH} needed)"
    runs = counted(found.pairs, "pair") if found.pairs else f"{found.other} and {found.first} unpaired runs"
    amount = f"{signed(value)}{f' {measure.unit}' if measure.unit else ''}"
    if found.excludes_zero is None:
        return f"{subject}: {amount} without an interval ({runs})"
    ends = f"{signed(low)} to {signed(high)}"
    return f"{subject}: {amount} ({ends}, {runs})" if found.excludes_zero else f"{subject}: unclear, {ends} ({runs})"


def _finite(values: Sequence[float]) -> Floats:
    return np.array([value for value in values if math.isfinite(value)], dtype=np.float64)
