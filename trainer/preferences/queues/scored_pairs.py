"""Queues of pairs of a run's samples in the order of reward models' scores, with a share drawn at random."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from statistics import pstdev

from trainer.errors import ModelError, UsageError
from trainer.preferences.items import QueuePlan
from trainer.preferences.queues import Drawn, QueueInputs, Score, Wait, in_background, result_of
from trainer.preferences.queues.run_pairs import one_sample_each, pairs_each, sampled_pairs
from trainer.preferences.queues.run_samples import SampledIterations
from trainer.preferences.records import Comparison, Text

_COMPLETIONS = 128  # scored at once, about: a minute of a small model on two cores
_PAIRS = 512  # of these, at most
_LEAST = 16  # pairs in order; when fewer are left, the next ones are scored
_IN_ADVANCE = 6  # random pairs that may come early, so that nobody waits for the first scores

Measure = Callable[[Sequence[float]], float]
"""Function that orders pairs, smallest first, by r(a) - r(b) of each model."""
Measured = Callable[[Sequence[Comparison]], list[tuple[float, Comparison]]]


def uncertain(plan: QueuePlan, inputs: QueueInputs) -> Iterator[Drawn]:
    """Yield pairs by |r(a) - r(b)| of the plan's first model, smallest first: its preference is weakest there.

    See `_ordered`.
    """
    if not plan.models:
        raise UsageError("the queue of uncertain pairs needs a reward model: name one")
    yield from _ordered(plan.source, plan.models[:1], lambda by: abs(by[0]), inputs)


def disagreement(plan: QueuePlan, inputs: QueueInputs) -> Iterator[Drawn]:
    """Yield pairs by the standard deviation of r(a) - r(b) over the plan's models, largest first. See `_ordered`."""
    models = list(dict.fromkeys(plan.models))
    if len(models) < 2:
        raise UsageError("the queue of disagreement needs two reward models or more: name them")
    yield from _ordered(plan.source, models, lambda by: -pstdev(by), inputs)


def _ordered(source: str, models: Sequence[str], measure: Measure, inputs: QueueInputs) -> Iterator[Drawn]:
    """Yield pairs of the samples of one prompt: scored ones by `measure`, smallest first, and random ones.

    At least the inputs' `random_share` of the pairs are random. Raises UsageError if there are no pairs, and what
    `context.score` raises.
    """
    context, share = inputs.context, inputs.random_share
    if context.score is None:
        raise UsageError("nothing can score pairs here: choose another queue")
    iterations = SampledIterations(source, inputs.report)
    iterations.check_any()
    if each := pairs_each(iterations):
        inputs.supply.total = lambda: each * iterations.found
    why = f"scoring samples with {' and '.join(Path(model).name for model in models)}"
    pairs = ScoredPairs(iterations, partial(_measured, models, measure, context.score), why, inputs)
    given = at_random = 0
    while True:
        context.check()
        pairs.look_ahead()
        randomly = at_random < share * (given + 1)
        pair = None if randomly else pairs.first()
        early = at_random < share * given + _IN_ADVANCE
        if pair is None and (randomly or early or not pairs.awaited):
            pair, randomly = pairs.any(), True
        if pair is not None:
            given, at_random = given + 1, at_random + randomly
            inputs.supply.drawn = given
            yield pair
        elif pairs.awaited:
            yield Wait(pairs.awaited)
        elif iterations.are_over():
            return
        elif iterations.newest() is None:
            yield Wait(iterations.awaited)


class ScoredPairs:
    """Pairs of `iterations` in order or at random, each once.

    Some completions of the newest iterations are scored at once, in the background: newer iterations when they have
    come, older ones when these are used up.

    measured: returns pairs with their measures. why: what is awaited while it runs, in words.
    """

    def __init__(self, iterations: SampledIterations, measured: Measured, why: str, inputs: QueueInputs) -> None:
        self._iterations = iterations
        self._measured = measured
        self._why = why
        self._inputs = inputs
        self._all: list[Comparison] = []
        self._in_order: list[tuple[float, int, Comparison]] = []  # a heap of measures; a number orders equal ones
        self._numbers = count()
        self._newest = -1  # iteration that was read
        self._has_pairs = False  # whether there was any pair yet
        self._scoring: Future[list[tuple[float, Comparison]]] | None = None

    @property
    def awaited(self) -> str:
        """Scores to wait for, in words; empty for none."""
        return self._why if self._scoring is not None else ""

    def look_ahead(self) -> None:
        """Collect the scores that have come, and start scoring more when it is time.

        Raises what scoring raises, and UsageError if no prompt has two samples.
        """
        if self._scoring is not None and self._scoring.done():
            found = result_of(self._scoring, self._why)
            self._scoring = None
            for measure, pair in found:
                heapq.heappush(self._in_order, (measure, next(self._numbers), pair))
        newest = self._iterations.newest()
        if self._scoring is None and newest is not None and (newest > self._newest or len(self._in_order) < _LEAST):
            self._newest = max(newest, self._newest)
            if pairs := self._next_pairs():
                self._all += pairs
                self._scoring = in_background(partial(self._measured, pairs), self._inputs.context.wake)

    def first(self) -> Comparison | None:
        """Return the first new pair in order; None if there is none."""
        while self._in_order:
            *_, pair = heapq.heappop(self._in_order)
            if self._inputs.history.is_new(pair):
                return pair
        return None

    def any(self) -> Comparison | None:
        """Return a random new pair, scored or not; None if there is none."""
        while self._all:
            place = self._inputs.rng.randrange(len(self._all))
            self._all[place], self._all[-1] = self._all[-1], self._all[place]
            if self._inputs.history.is_new(pair := self._all.pop()):
                return pair
        return None

    def _next_pairs(self) -> list[Comparison]:
        pairs: list[Comparison] = []
        completions = 0
        while completions < _COMPLETIONS and (newest := self._iterations.newest()) is not None:
            self._inputs.context.check()
            prompts = self._iterations.read(newest)
            self._iterations.drop(newest)
            completions += sum(len(one.samples) for one in prompts)
            self._has_pairs |= any(len(one.samples) > 1 for one in prompts)
            if prompts and not self._has_pairs:
                raise UsageError(one_sample_each(self._iterations))
            pairs += islice(sampled_pairs(prompts, self._inputs.rng), _PAIRS - len(pairs))
        return pairs


def _measured(
    models: Sequence[str], measure: Measure, score: Score, pairs: Sequence[Comparison]
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
            shown = replace(pair, columns={**pair.columns, "reward_models": by_model})
            found.append((measure(differences), shown))
    return found
