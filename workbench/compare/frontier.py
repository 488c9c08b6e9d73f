"""Frontier of reward against KL: the score that a run reached at each distance from its reference.

Gao et al. 2022 (arXiv 2210.10760) and Rafailov et al. 2023 (arXiv 2305.18290, figure 2) compare methods by it: a
higher score says little if it was bought with a higher KL.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from workbench.compare.lines import mean
from workbench.compare.run import ComparedRun

_MANY = 5  # evaluations that suffice for a comparison
_LEVELS = 6
_STEPS = 5  # steps from a mean to the first one that shares no iteration with it
_ROUND = (1.0, 2.0, 5.0)


class Point(NamedTuple):
    """A point of a run: `kl` in nats per sequence, `iteration` the last one that counts for it."""

    iteration: int
    kl: float
    score: float


class Frontier(NamedTuple):
    """The points of each run. held_out: for each run, whether it is compared on held-out prompts."""

    training: list[list[Point]]
    evaluations: list[list[Point]]
    held_out: list[bool]

    @property
    def compared(self) -> list[list[Point]]:
        """Points of each run that are compared with those of the other runs."""
        chosen = zip(self.held_out, self.evaluations, self.training, strict=True)
        return [evaluations if held_out else training for held_out, evaluations, training in chosen]

    def __bool__(self) -> bool:
        return any(self.compared)


def frontier(runs: Sequence[ComparedRun]) -> Frontier:
    """Return the points of `runs`.

    Runs are compared on held-out prompts if each has five evaluations, else on their training batches. A run without
    scores of training batches, such as a DPO run, is always compared on held-out prompts.
    """
    training = [training_points(run) for run in runs]
    evaluations = [held_out_points(run) for run in runs]
    many = all(len(e) >= _MANY for t, e in zip(training, evaluations, strict=True) if t or e)
    held_out = [bool(e) and (many or not t) for t, e in zip(training, evaluations, strict=True)]
    return Frontier(training, evaluations, held_out)


def training_points(run: ComparedRun) -> list[Point]:
    """Return means over `run.window` neighbouring iterations, a fifth of that apart; over all if there are fewer."""
    numbers = run.view.history.numbers
    known = [
        Point(number, kl, score)
        for number, kl, score in zip(numbers, run.column("kl"), run.column("score_mean"), strict=False)
        if math.isfinite(kl) and math.isfinite(score)
    ]
    size = min(run.window, len(known))
    ends = range(len(known), max(size - 1, 0), -max(size // _STEPS, 1))
    means = [_mean(known[end - size : end]) for end in reversed(ends)]
    return [point for point in means if math.isfinite(point.kl) and math.isfinite(point.score)]


def held_out_points(run: ComparedRun) -> list[Point]:
    """Return the evaluations on held-out prompts, including the one before the first iteration."""
    points = (Point(e.iteration, e.kl, e.score_mean) for e in run.view.evaluations)
    return [point for point in points if math.isfinite(point.kl) and math.isfinite(point.score)]


def best(points: Iterable[Point], kl: float = math.inf) -> Point | None:
    """Return the point of highest score with a KL of at most `kl`; None if there is none."""
    return max((point for point in points if point.kl <= kl), key=lambda point: point.score, default=None)


def levels(points: Iterable[Point]) -> list[float]:
    """Return at most six round KLs, ascending; the last is the first that no point exceeds."""
    reached = [point.kl for point in points if point.kl > 0]
    if not reached:
        return []
    lowest, highest = min(reached), max(reached)
    found = []
    for level in _round_values(lowest):
        found.append(level)
        if level >= highest:
            break
    return found[-_LEVELS:]


def _round_values(start: float) -> Iterator[float]:
    """Yield 1, 2 and 5 times the powers of ten, from the first that is at least `start`, without end."""
    for power in itertools.count(math.floor(math.log10(start))):
        yield from (value for factor in _ROUND if (value := factor * 10.0**power) >= start)


def _mean(points: Sequence[Point]) -> Point:
    return Point(points[-1].iteration, mean(p.kl for p in points), mean(p.score for p in points))
