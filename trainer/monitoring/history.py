"""Data for the rules: a run's first and newest iterations, overall and since the last change."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain
from statistics import fmean
from typing import NamedTuple

from trainer.events import (
    Alert,
    CheckpointSaved,
    Evaluation,
    Event,
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
    """The iterations since a change: the first FIRST of them and the newest NEWEST."""

    def __init__(self) -> None:
        self._first: list[Iteration] = []
        self._newest: deque[Iteration] = deque(maxlen=NEWEST)

    def add(self, row: Iteration) -> None:
        """Add the next iteration."""
        if len(self._first) < FIRST:
            self._first.append(row)
        self._newest.append(row)

    def cut(self, last: int) -> None:
        """Forget the iterations after `last`, which were undone."""
        self._first = [row for row in self._first if row.iteration <= last]
        self._newest = deque((row for row in self._newest if row.iteration <= last), maxlen=NEWEST)

    def look_anew(self) -> None:
        """Forget the newest iterations and keep the first, so that later ones are judged on their own."""
        self._newest.clear()

    def clear(self) -> None:
        """Forget all iterations."""
        self.cut(-1)

    def newest(self, count: int) -> list[Iteration]:
        """Return the newest `count` iterations in order; none if there are fewer."""
        return list(self._newest)[-count:] if len(self._newest) >= count else []

    def all_kept(self) -> list[Iteration]:
        """Return every iteration that is kept, in order."""
        return list({row.iteration: row for row in chain(self._first, self._newest)}.values())

    def early_and_late(self, early: int, late: int) -> tuple[list[Iteration], list[Iteration]] | None:
        """Return the first `early` and the newest `late` iterations; None while they overlap."""
        before, now = self._first[:early], self.newest(late)
        if not before or not now or before[-1].iteration >= now[0].iteration:
            return None
        return before, now


class HeldOut(NamedTuple):
    """An evaluation, and the mean score of the training batches just before it."""

    evaluation: Evaluation
    training_score: float


class History:
    """A run's events so far, as far as the rules need them."""

    def __init__(self) -> None:
        self.iteration = 0
        self.run = Stretch()
        self.scores = Stretch()  # since the reward changed
        self.texts = Stretch()  # since the sampling changed
        self.speed = Stretch()  # since the process began or a setting changed
        self.evaluations: deque[HeldOut] = deque(maxlen=NEWEST)  # since the reward changed
        self.human: deque[HumanEvaluation] = deque(maxlen=NEWEST)
        self.lost_steps = 0  # of the current iteration: skipped because of NaN or inf
        self.has_checkpoint = False

    def take(self, event: Event) -> bool:
        """Add an event; return whether the rules have something new to check."""
        match event:
            case Iteration():
                self.iteration = event.iteration
                for stretch in self._stretches:
                    stretch.add(event)
                self.lost_steps = 0
                return True
            case Evaluation():
                before = [row.score_mean for row in self.scores.all_kept()[-MARGIN:]]
                self.evaluations.append(HeldOut(event, mean(before)))
                return True
            case HumanEvaluation():
                self.human.append(event)
                return True
            case Alert(code="step_skipped"):
                self.iteration = event.iteration
                self.lost_steps += 1
                return True
            case SettingChanged():
                self._changed(event.key)
            case RolledBack():
                self._cut(event.to)
                for stretch in self._stretches:
                    stretch.look_anew()  # a rollback changes the learning rates
            case RunStarted():
                self._cut(event.resumed_at or 0)
                self.speed.clear()
            case CheckpointSaved():
                self.has_checkpoint = True
        return False

    @property
    def _stretches(self) -> Iterable[Stretch]:
        return (self.run, self.scores, self.texts, self.speed)

    def _changed(self, key: str) -> None:
        self.speed.clear()
        match key.partition(".")[0]:
            case "reward":
                self.scores.clear()
                self.evaluations.clear()
            case "rollout":
                self.texts.clear()

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


def mean_of(rows: Iterable[Iteration], number: Callable[[Iteration], float]) -> float:
    """Return the mean of a number over iterations, leaving out those in which it is unknown (NaN)."""
    return mean(map(number, rows))
