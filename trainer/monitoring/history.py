"""What the rules look at: a run's first and newest iterations, and those since something about it changed."""

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
"""Iterations kept of the beginning of a stretch; no rule's baseline is longer."""

NEWEST = 60
"""Newest iterations kept; no rule looks further back but at the beginning."""

MARGIN = 5
"""Iterations before an evaluation over which the score in training is taken beside it."""


class Stretch:
    """The iterations since something began anew: the first FIRST of them and the NEWEST newest."""

    def __init__(self) -> None:
        self._first: list[Iteration] = []
        self._newest: deque[Iteration] = deque(maxlen=NEWEST)

    def add(self, row: Iteration) -> None:
        """Take the next iteration."""
        if len(self._first) < FIRST:
            self._first.append(row)
        self._newest.append(row)

    def cut(self, last: int) -> None:
        """Forget the iterations after `last`: they are undone."""
        self._first = [row for row in self._first if row.iteration <= last]
        self._newest = deque((row for row in self._newest if row.iteration <= last), maxlen=NEWEST)

    def look_anew(self) -> None:
        """Keep the beginning alone, so that what comes is judged by itself."""
        self._newest.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.cut(-1)

    def newest(self, count: int) -> list[Iteration]:
        """The newest `count` iterations in order; none where there are fewer."""
        return list(self._newest)[-count:] if len(self._newest) >= count else []

    def all_kept(self) -> list[Iteration]:
        """Every iteration that is still known, in order."""
        return list({row.iteration: row for row in chain(self._first, self._newest)}.values())

    def early_and_late(self, early: int, late: int) -> tuple[list[Iteration], list[Iteration]] | None:
        """The first `early` and the newest `late` iterations; None while they overlap."""
        before, now = self._first[:early], self.newest(late)
        if not before or not now or before[-1].iteration >= now[0].iteration:
            return None
        return before, now


class HeldOut(NamedTuple):
    """An evaluation, and the mean score of the training batches just before it."""

    evaluation: Evaluation
    training_score: float


class History:
    """A run's events so far, as much of them as the rules need."""

    def __init__(self) -> None:
        self.iteration = 0
        self.run = Stretch()
        self.scores = Stretch()  # since the reward changed
        self.texts = Stretch()  # since the sampling changed
        self.speed = Stretch()  # since the process began or a setting changed
        self.evaluations: deque[HeldOut] = deque(maxlen=NEWEST)  # since the reward changed
        self.human: deque[HumanEvaluation] = deque(maxlen=NEWEST)
        self.lost_steps = 0  # of the iteration under way: not taken for NaN or inf
        self.has_checkpoint = False

    def take(self, event: Event) -> bool:
        """Take up an event; whether the rules have something new to look at."""
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
                    stretch.look_anew()  # it goes on with other learning rates
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
    """The mean of those that are finite; NaN where none is."""
    known = [value for value in values if math.isfinite(value)]
    return fmean(known) if known else math.nan


def mean_of(rows: Iterable[Iteration], number: Callable[[Iteration], float]) -> float:
    """The mean of a number over iterations, those left out in which it is not known."""
    return mean(map(number, rows))
