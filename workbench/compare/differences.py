"""Differences between groups of runs over seeds, with 95% intervals.

One run says little about a method, because another seed can score more or less than another setting does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainer.confidence import Interval, mean_interval, t_quantile
from trainer.evaluation.intervals import Floats
from workbench.compare.compared_run import RunGroup, seed_of
from workbench.compare.measures import RunMeasure


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
    Welch's interval of all runs that have it.
    """
    of_first, of_other = _by_seed(measure, first), _by_seed(measure, other)
    shared = sorted(of_first.keys() & of_other.keys())
    with np.errstate(over="ignore", invalid="ignore"):
        if len(shared) > 1:
            differences = np.array([of_other[seed] - of_first[seed] for seed in shared])
            return Contrast(mean_interval(differences), len(shared), len(shared), len(shared))
        unpaired = _finite(measure.values(first)), _finite(measure.values(other))
        return Contrast(welch_interval(*unpaired), 0, len(unpaired[0]), len(unpaired[1]))


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


def _finite(values: Sequence[float]) -> Floats:
    return np.array([value for value in values if math.isfinite(value)], dtype=np.float64)


def _by_seed(measure: RunMeasure, group: RunGroup) -> dict[int, float]:
    found = zip(map(seed_of, group.runs), measure.values(group), strict=True)
    return {seed: value for seed, value in found if seed is not None and math.isfinite(value)}
