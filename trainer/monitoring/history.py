"""Data for the rules, a run's first and newest iterations, overall and since a change; and the sign of a rule."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, variance
from typing import Literal, NamedTuple

from trainer.config.schema import Config
from trainer.events import (
    Alert,
    CheckpointSaved,
    DataChanged,
    Evaluation,
    Event,
    Fix,
    HumanEvaluation,
    Iteration,
    RolledBack,
    RunStarted,
    SettingChanged,
)

FIRST = 20
"""First iterations kept of a stretch; no rule's baseline is longer."""

NEWEST = 60
"""Newest iterations kept; apart from the first ones, no rule looks further back."""

MARGIN = 5
"""Iterations before an evaluation whose mean training score is kept with it."""


class Stretch:
    """The iterations since a change: in `rows`, the first FIRST of them and the newest NEWEST."""

    def __init__(self) -> None:
        self.rows: list[Iteration] = []
        self._since = 0  # place in `rows` from which they count as newest

    def add(self, row: Iteration, *, keep: int = NEWEST) -> None:
        """Add the next iteration, and keep the newest `keep`."""
        self.rows.append(row)
        del self.rows[FIRST : max(len(self.rows) - keep, 0)]

    def cut(self, last: int) -> None:
        """Forget the iterations after `last`, which were undone."""
        self.rows = [row for row in self.rows if row.iteration <= last]
        self._since = min(self._since, len(self.rows))

    def clear(self, *, keep_first: bool = False) -> None:
        """Forget all iterations, or all but the first, so that later ones are judged on their own."""
        self.rows = self.rows[:FIRST] if keep_first else []
        self._since = len(self.rows)

    def newest(self, count: int, *, before: int = 0) -> list[Iteration]:
        """Return the `count` iterations before the newest `before`, in order; none if there are fewer."""
        end = len(self.rows) - before
        return self.rows[end - count : end] if end - count >= self._since else []

    def early_and_late(self, count: int) -> tuple[list[Iteration], list[Iteration]] | None:
        """Return the first `count` and the newest `count` iterations; None while they overlap."""
        before, now = self.rows[:count], self.newest(count)
        if not before or not now or before[-1].iteration >= now[0].iteration:
            return None
        return before, now

    def start_and_now(self, metric: str, count: int) -> tuple[float, float]:
        """Return the means of a metric over the first and the newest `count` iterations; NaN while they overlap."""
        start, now = (mean(getattr(row, metric) for row in rows) for rows in self.early_and_late(count) or ((), ()))
        return start, now


class HeldOut(NamedTuple):
    """An evaluation, and the mean score of the training batches just before it."""

    evaluation: Evaluation
    training_score: float


class MeanScore(NamedTuple):
    """Mean score of a window of iterations, or of an evaluation, which has an interval because its prompts are few.

    The interval of a window is its mean.
    """

    mean: float
    std: float  # of the scores of single responses
    low: float
    high: float


class History:
    """A run's events so far, as far as the rules need them."""

    def __init__(self) -> None:
        self.iteration = 0
        self.run = Stretch()
        self.scores = Stretch()  # since the reward changed
        self.texts = Stretch()  # since the sampling changed
        self.speed = Stretch()  # since the process began or a setting changed
        self._stretches = (self.run, self.scores, self.texts, self.speed)
        self.learning = Stretch()  # since the reward changed or a rollback, without the critic's warm-up
        self.first_entropy: float | None = None  # of the run's first iteration, nats a token
        self.best: MeanScore | None = None  # of the windows since the reward changed, rolled back or not
        self.evaluations: deque[HeldOut] = deque(maxlen=NEWEST)  # since the reward changed
        self.is_evaluated = False
        self.held_out: MeanScore | None = None  # newest evaluation since the reward changed or a rollback
        self.best_held_out: MeanScore | None = None  # since the reward changed, rolled back or not
        self.human: deque[HumanEvaluation] = deque(maxlen=NEWEST)
        self.lost_steps = 0  # of the current iteration: skipped because of NaN or inf
        self.has_checkpoint = False
        self.dtype = ""  # of the backbone; "" if unknown

    def take(self, event: Event, config: Config) -> bool:
        """Add an event under the current configuration; return whether the rules have something new to check."""
        match event:
            case Iteration():
                self.iteration = event.iteration
                for stretch in self._stretches:
                    stretch.add(event)
                self.lost_steps = 0
                if self.first_entropy is None:
                    self.first_entropy = event.entropy
                if event.iteration > config.ppo.critic_warmup:  # before, the policy does not learn
                    size = config.convergence.window
                    self.learning.add(event, keep=max(NEWEST, 2 * size))
                    if newest := self.window_score(size):
                        self.best = _better(self.best, newest)
                return True
            case Evaluation():
                before = [row.score_mean for row in self.scores.rows[-MARGIN:]]
                self.evaluations.append(HeldOut(event, mean(before)))
                self.is_evaluated = True
                self.held_out = MeanScore(event.score_mean, event.score_std, event.score_low, event.score_high)
                self.best_held_out = _better(self.best_held_out, self.held_out)
                return True
            case HumanEvaluation():
                self.human.append(event)
                return True
            case Alert(code="step_skipped"):
                self.iteration = event.iteration
                self.lost_steps += 1
                return True
            case SettingChanged() | DataChanged():  # scores on other prompts cannot be compared either
                table = event.key.partition(".")[0] if isinstance(event, SettingChanged) else "reward"
                self.speed.clear()
                if table == "reward":
                    self.scores.clear()
                    self.learning.clear()
                    self.evaluations.clear()
                    self.best = self.held_out = self.best_held_out = None
                elif table == "rollout":
                    self.texts.clear()
            case RolledBack():
                self._cut(event.to)
                for stretch in self._stretches:
                    stretch.clear(keep_first=True)  # a rollback changes the learning rates
                self.learning.clear()
                self.held_out = None
            case RunStarted():
                self._cut(event.resumed_at or 0)
                self.learning.cut(event.resumed_at or 0)
                self.speed.clear()
                self.dtype = event.dtype
            case CheckpointSaved():
                self.has_checkpoint = True
        return False

    def window_score(self, size: int, *, before: int = 0) -> MeanScore | None:
        """Return the mean score of the `size` iterations before the newest `before`; None if there are fewer."""
        rows = self.learning.newest(size, before=before)
        if not rows:
            return None
        mean_score = fmean([row.score_mean for row in rows])
        return MeanScore(mean_score, fmean([row.score_std for row in rows]), mean_score, mean_score)

    def _cut(self, last: int) -> None:
        for stretch in self._stretches:
            stretch.cut(last)
        kept = (held for held in self.evaluations if held.evaluation.iteration <= last)
        self.evaluations = deque(kept, maxlen=NEWEST)
        self.lost_steps = 0


def mean(values: Iterable[float]) -> float:
    """Return the mean of the finite values; NaN if there are none."""
    known = [value for value in values if math.isfinite(value)]
    return fmean(known) if known else math.nan


def _better(best: MeanScore | None, score: MeanScore) -> MeanScore | None:
    if math.isnan(score.mean):  # nothing was scored
        return best
    return score if best is None or score.mean > best.mean else best


Level = Literal["info", "warning", "error"]


class Sign(NamedTuple):
    """A finding: what it is, the numbers that show it, and, for an alarm, what to do."""

    level: Level
    message: str
    evidence: dict[str, float]
    advice: str = ""
    fixes: Sequence[str | Fix | None] = ()  # likeliest first; names as in `monitor`; None: not available


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
