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
from trainer.preferences.queues import Drawn, QueueInputs, Score, Wait, in_background, result_of
from trainer.preferences.queues.run_pairs import SampledIterations, one_sample_each, pairs_each, sampled_pairs
from trainer.preferences.records import Comparison, QueuePlan, Text

_COMPLETIONS = 128  # scored at once, about: a minute of a small model on two cores
_PAIRS = 512  # of these, at most
_LEAST = 16  # pairs in order; when fewer are left, the next ones are scored
_IN_ADVANCE = 6  # random pairs that may come early, so that nobody waits for the first scores

Measure = Callable[[Sequence[float]], float]
"""Function that orders pairs, smallest first, by r(a) - r(b) of each model."""


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
    """Yield pairs of the samples of one prompt, each once: scored ones by `measure`, smallest first, and random ones.

    Some completions of the newest iterations are scored at once, in the background: newer iterations when they have
    come, older ones when these are used up. At least the inputs' `random_share` of the pairs are random. Raises
    UsageError if there are no pairs, and what `context.score` raises.
    """
    context, share, is_new = inputs.context, inputs.random_share, inputs.history.is_new
    if context.score is None:
        raise UsageError("nothing can score pairs here: choose another queue")
    iterations = SampledIterations(source, inputs.report)
    iterations.check_any()
    if each := pairs_each(iterations):
        inputs.supply.total = lambda: each * iterations.found
    why = f"scoring samples with {' and '.join(Path(model).name for model in models)}"
    everything: list[Comparison] = []  # not drawn yet, scored or not
    in_order: list[tuple[float, int, Comparison]] = []  # a heap of measures; a number orders equal ones
    scoring: Future[list[tuple[float, Comparison]]] | None = None
    numbers, read, given, at_random = count(), -1, 0, 0
    while True:
        context.check()
        if scoring is not None and scoring.done():
            for value, scored in result_of(scoring, why):
                heapq.heappush(in_order, (value, next(numbers), scored))
            scoring = None
        newest = iterations.newest()
        if scoring is None and newest is not None and (newest > read or len(in_order) < _LEAST):
            found = _next_pairs(iterations, inputs)
            if not found and read < 0 and not everything:
                raise UsageError(one_sample_each(iterations))
            read = max(newest, read)
            everything.extend(found)
            scoring = in_background(partial(_measured, models, measure, context.score, found), context.wake)
        randomly = at_random < share * (given + 1)
        pair = None if randomly else _first(lambda: heapq.heappop(in_order)[-1] if in_order else None, is_new)
        if pair is None and (randomly or at_random < share * given + _IN_ADVANCE or scoring is None):
            pair, randomly = _first(lambda: _any(everything, inputs), is_new), True
        if pair is not None:
            given, at_random = given + 1, at_random + randomly
            inputs.supply.drawn = given
            yield pair
        elif scoring is not None:
            yield Wait(why)
        elif iterations.are_over():
            return
        elif iterations.newest() is None:
            yield Wait(iterations.awaited)


def _first(take: Callable[[], Comparison | None], is_new: Callable[[Comparison], bool]) -> Comparison | None:
    """Take pairs until one is new; None if there are no more."""
    while (pair := take()) is not None and not is_new(pair):
        pass
    return pair


def _any(pairs: list[Comparison], inputs: QueueInputs) -> Comparison | None:
    """Remove a random one of `pairs` and return it; None if there is none."""
    if not pairs:
        return None
    place = inputs.rng.randrange(len(pairs))
    pairs[place], pairs[-1] = pairs[-1], pairs[place]
    return pairs.pop()


def _next_pairs(iterations: SampledIterations, inputs: QueueInputs) -> list[Comparison]:
    """Return pairs of the newest iterations left, of as many completions as are scored at once."""
    pairs: list[Comparison] = []
    completions = 0
    while completions < _COMPLETIONS and (newest := iterations.newest()) is not None:
        inputs.context.check()
        prompts = iterations.read(newest)
        iterations.drop(newest)
        completions += sum(len(one.samples) for one in prompts)
        pairs += islice(sampled_pairs(prompts, inputs.rng), _PAIRS - len(pairs))
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
