"""Groups of PPO runs, one run a seed: the measures of each group with 95% intervals, and what differs from the first.

One run says little about a method, because another seed can score more or less than another setting does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from trainer.confidence import Interval, mean_interval, t_quantile
from trainer.evaluation.intervals import Floats
from trainer.runs.listing import RECENT, last_mean
from workbench.compare.compared_run import ComparedRun, mean
from workbench.compare.frontier import batch_points, best
from workbench.run.history import History

LEVELS = (2, 4, 8, 16)  # nats a sequence
STRETCH = 5  # iterations in a row of a mean


@dataclass(frozen=True, slots=True)
class Group:
    """Runs of one method that differ in their seeds. letter: its colour, A for the first group."""

    letter: str
    name: str  # as given, not made safe to print
    runs: Sequence[ComparedRun]

    @property
    def seeds(self) -> list[int]:
        """Seeds of the runs, ascending; a run whose seed cannot be read has none."""
        return sorted(seed for run in self.runs if (seed := seed_of(run)) is not None)


class GroupMeasure(NamedTuple):
    """One number of a run, and the words that compare it: b VERB 0.12 UNIT more NOUN than a WHERE.

    key: the name in the JSON output. of: the number of a run's history; NaN if the run has not reached it.
    missing: what runs without it do not have. low, high: the values that it can have.
    """

    key: str
    label: str
    unit: str
    of: Callable[[History], float]
    digits: int
    verb: str
    noun: str
    where: str
    missing: str
    low: float = -math.inf
    high: float = math.inf


class Value(NamedTuple):
    """A measure of one run. number: NaN if the run has not reached it."""

    seed: int | None
    number: float


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
    def is_told(self) -> bool | None:
        """Return whether the data tell which group has more: the interval excludes 0. None without an interval."""
        low, high = self.difference.low, self.difference.high
        return (low > 0 or high < 0) if math.isfinite(low) and math.isfinite(high) else None


def seed_of(run: ComparedRun) -> int | None:
    """Return the seed of a run; None if neither journal nor config.toml has it."""
    if run.view.started:
        return run.view.started.seed
    section = (run.config or {}).get("run")
    seed = section.get("seed") if isinstance(section, Mapping) else None
    return seed if isinstance(seed, int) else None


def values_of(measure: GroupMeasure, group: Group) -> list[Value]:
    """Return the measure of each run of `group`."""
    return [Value(seed_of(run), measure.of(run.view.history)) for run in group.runs]


def group_mean(measure: GroupMeasure, values: Sequence[Value]) -> Interval:
    """Estimate the mean over the runs that have the measure; it has no interval for a single one.

    The interval is cut to what the measure can be. An estimate of the KL can be below 0, which then ends it.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean, low, high = mean_interval(_numbers(values))
    least, most = min(measure.low, mean), max(measure.high, mean)
    return Interval(mean, *(min(max(end, least), most) if math.isfinite(end) else end for end in (low, high)))


def contrast(first: Sequence[Value], other: Sequence[Value]) -> Contrast:
    """Estimate by how much `other` exceeds `first`, with a 95% interval.

    It is that of the differences between runs of one seed if at least two seeds have the measure in both groups, else
    Welch's interval of all runs that have it.
    """
    of_first, of_other = _by_seed(first), _by_seed(other)
    shared = sorted(of_first.keys() & of_other.keys())
    with np.errstate(over="ignore", invalid="ignore"):
        if len(shared) > 1:
            differences = np.array([of_other[seed] - of_first[seed] for seed in shared])
            return Contrast(mean_interval(differences), len(shared), len(shared), len(shared))
        unpaired = _numbers(first), _numbers(other)
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


def best_within(history: History, level: float) -> float:
    """Return the best mean score of five iterations in a row whose mean KL is at most `level`; NaN without one.

    level: nats a sequence. Iterations whose score or KL is not finite are left out.
    """
    columns = history.column("score_mean"), history.column("kl")
    if sum(math.isfinite(score) and math.isfinite(kl) for score, kl in zip(*columns, strict=True)) < STRETCH:
        return math.nan
    point = best(batch_points(history, STRETCH), level)
    return math.nan if point is None else point.score


def _last(history: History, name: str) -> float:
    return last_mean(history.column(name)) if len(history) >= RECENT else math.nan


def _second_half(history: History, name: str) -> float:
    return mean(history.column(name)[len(history) // 2 :])


def _mean(history: History, name: str) -> float:
    return mean(history.column(name))


def _numbers(values: Sequence[Value]) -> Floats:
    return np.array([value.number for value in values if math.isfinite(value.number)], dtype=np.float64)


def _by_seed(values: Sequence[Value]) -> dict[int, float]:
    return {seed: number for seed, number in values if seed is not None and math.isfinite(number)}


MEASURES = (
    *(
        GroupMeasure(
            key=f"score_within_{level}",
            label=f"score within {level} nats",
            unit="",
            of=partial(best_within, level=level),
            digits=2,
            verb="scores",
            noun="",
            where=f"within {level} nats",
            missing=f"{STRETCH} iterations in a row within {level} nats",
        )
        for level in LEVELS
    ),
    GroupMeasure(
        key="score",
        label=f"score, last {RECENT}",
        unit="",
        of=partial(_last, name="score_mean"),
        digits=2,
        verb="scores",
        noun="",
        where=f"in the last {RECENT} iterations",
        missing=f"the scores of {RECENT} iterations",
    ),
    GroupMeasure(
        key="kl",
        label=f"KL, last {RECENT}",
        unit="nats",
        of=partial(_last, name="kl"),
        digits=2,
        verb="has",
        noun="KL",
        where=f"in the last {RECENT} iterations",
        missing=f"the KLs of {RECENT} iterations",
        low=0,
    ),
    GroupMeasure(
        key="explained_variance",
        label="explained variance",
        unit="",
        of=partial(_second_half, name="explained_variance"),
        digits=2,
        verb="has",
        noun="explained variance",
        where="in the second half",
        missing="an explained variance",
        high=1,
    ),
    GroupMeasure(
        key="seconds_an_iteration",
        label="time an iteration",
        unit="s",
        of=partial(_mean, name="seconds_total"),
        digits=2,
        verb="takes",
        noun="time",
        where="for an iteration",
        missing="a finished iteration",
        low=0,
    ),
)
