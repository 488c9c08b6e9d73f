"""Pairs of a run's samples, some of them in the order of reward models' scores."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple

from trainer.errors import ModelError, UsageError
from trainer.preferences.queues.context import QueueContext, Score, in_background, result_of
from trainer.preferences.queues.known import Known
from trainer.preferences.queues.pairs import has_pairs, sampled_pairs
from trainer.preferences.queues.run_samples import SampledIterations
from trainer.preferences.queues.sampled import one_sample_each
from trainer.preferences.records import Comparison, Text

_COMPLETIONS = 128  # scored at once, about: a minute of a small model on two cores
_PAIRS = 512  # of these, at most
_LEAST = 16  # pairs in order; when fewer are left, the next ones are scored

Measure = Callable[[Sequence[float]], float]
"""Function that orders pairs, smallest first, by r(a) - r(b) of each model."""


class _Scored(NamedTuple):
    measure: float
    number: int  # orders pairs of equal measure
    pair: Comparison


class ScoredPairs:
    """Pairs of `iterations` in order or at random, each once.

    Some completions of the newest iterations are scored at once, in the background: newer iterations when they have
    come, older ones when these are used up.
    """

    def __init__(
        self,
        iterations: SampledIterations,
        models: Sequence[str],
        measure: Measure,
        score: Score,
        context: QueueContext,
        rng: random.Random,
    ) -> None:
        self._iterations = iterations
        self._models = models
        self._measure = measure
        self._score = score
        self._context = context
        self._rng = rng
        self._all: list[Comparison] = []
        self._in_order: list[_Scored] = []  # a heap
        self._numbers = count()
        self._newest = -1  # iteration that was read
        self._compares = False  # whether there was any pair yet
        self._scoring: Future[list[tuple[float, Comparison]]] | None = None

    @property
    def what_comes(self) -> str:
        """Scores to wait for, in words; empty for none."""
        names = " and ".join(Path(model).name for model in self._models)
        return f"samples are scored by {names}" if self._scoring is not None else ""

    def look_ahead(self) -> None:
        """Collect the scores that have come, and start scoring more when it is time.

        Raises what scoring raises, and UsageError if no prompt has two samples.
        """
        if self._scoring is not None and self._scoring.done():
            found = result_of(self._scoring, self.what_comes)
            self._scoring = None
            for measure, pair in found:
                heapq.heappush(self._in_order, _Scored(measure, next(self._numbers), pair))
        newest = self._iterations.newest()
        if self._scoring is None and newest is not None and (newest > self._newest or len(self._in_order) < _LEAST):
            self._newest = max(newest, self._newest)
            if pairs := self._next_pairs():
                self._all += pairs
                work = partial(_measured, pairs, self._models, self._measure, self._score)
                self._scoring = in_background(work, self._context.wake)

    def first(self, known: Known) -> Comparison | None:
        """Return the first new pair in order; None if there is none."""
        while self._in_order:
            if known.is_new(pair := heapq.heappop(self._in_order).pair):
                return pair
        return None

    def any(self, known: Known) -> Comparison | None:
        """Return a random new pair, scored or not; None if there is none."""
        while self._all:
            place = self._rng.randrange(len(self._all))
            self._all[place], self._all[-1] = self._all[-1], self._all[place]
            if known.is_new(pair := self._all.pop()):
                return pair
        return None

    def _next_pairs(self) -> list[Comparison]:
        pairs: list[Comparison] = []
        completions = 0
        while completions < _COMPLETIONS and (newest := self._iterations.newest()) is not None:
            self._context.heed()
            prompts = self._iterations.read(newest)
            self._iterations.leave_out(newest)
            completions += sum(len(one.samples) for one in prompts)
            self._compares |= has_pairs(prompts)
            if prompts and not self._compares:
                raise UsageError(one_sample_each(self._iterations))
            pairs += islice(sampled_pairs(prompts, self._iterations.folder, self._rng), _PAIRS - len(pairs))
        return pairs


def _measured(
    pairs: Sequence[Comparison], models: Sequence[str], measure: Measure, score: Score
) -> list[tuple[float, Comparison]]:
    """Return `pairs` with their measure, the scores in their columns; without those that a model could not score."""
    places: dict[tuple[str, str], int] = {}
    texts: list[tuple[Text, Text]] = []
    for pair in pairs:
        for completion in pair.completions:
            if places.setdefault((str(pair.prompt), str(completion)), len(texts)) == len(texts):
                texts.append((pair.prompt, completion))
    scores = {model: score(model, texts) for model in models}
    for model, values in scores.items():
        if len(values) != len(texts):
            raise ModelError(f"reward model '{model}' gave {len(values)} scores to {len(texts)} completions: update it")
    found = []
    for pair in pairs:
        first, second = (places[str(pair.prompt), str(completion)] for completion in pair.completions)
        differences = [values[first] - values[second] for values in scores.values()]
        if all(map(math.isfinite, differences)):
            by_model = {Path(model).name: [values[first], values[second]] for model, values in scores.items()}
            told = replace(pair, columns={**pair.columns, "reward_models": by_model})
            found.append((measure(differences), told))
    return found
