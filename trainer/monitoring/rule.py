"""The sign that a rule returns, and the statistics that several rules share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, variance
from typing import Literal, NamedTuple

from trainer.config.schema import Config
from trainer.events import Fix, Iteration
from trainer.monitoring.history import History

Level = Literal["info", "warning", "error"]


class Sign(NamedTuple):
    """A finding: what it is, the numbers that show it, and, for an alarm, what to do."""

    level: Level
    message: str
    evidence: dict[str, float]
    advice: str = ""
    fixes: Sequence[Fix | None] = ()  # likeliest first; None: not available


Rule = Callable[[History, Config], Sign | None]
"""Check of a run so far under its current configuration. An unknown number (NaN) is never a sign."""


def source_parts(parts: Iterable[str], sources: int) -> list[str]:
    """Return the names of the sources in an event's `parts`, in the order of `reward.sources`, without their details.

    The list is empty if their number is not `sources`.
    """
    names: list[str] = []
    for name in parts:
        if not names or not name.startswith(f"{names[-1]}."):
            names.append(name)
    return names if len(names) == sources else []


def trained_scores(rows: Iterable[Iteration], config: Config) -> list[float]:
    """Return the weighted sum of the raw scores of each iteration; normalised scores would hide a rise."""
    sources = config.reward.sources
    sums = []
    for row in rows:
        names = source_parts(row.parts, len(sources))
        scores = [source.weight * row.parts[name] for name, source in zip(names, sources, strict=False)]
        if scores and math.isfinite(total := sum(scores)):
            sums.append(total)
    return sums


def standard_errors(high: Sequence[float], low: Sequence[float]) -> float:
    """Return how many standard errors the mean of `high` is above that of `low` (Welch's t); NaN below two values."""
    if min(len(high), len(low)) < 2:
        return math.nan
    error = math.sqrt(variance(high) / len(high) + variance(low) / len(low))
    difference = fmean(high) - fmean(low)
    return difference / error if error else math.copysign(math.inf, difference) if difference else 0.0
