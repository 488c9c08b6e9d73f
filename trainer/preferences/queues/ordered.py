"""Queues of pairs of a run's samples in the order of reward models' scores, with a share drawn at random."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from statistics import pstdev

from trainer.errors import UsageError
from trainer.preferences.items import QueuePlan
from trainer.preferences.queues.context import Drawn, QueueContext, Tell, Wait
from trainer.preferences.queues.known import Known
from trainer.preferences.queues.run_samples import SampledIterations
from trainer.preferences.queues.scored_pairs import Measure, ScoredPairs

_IN_ADVANCE = 6  # random pairs that may come early, so that nobody waits for the first scores


def uncertain(
    plan: QueuePlan, share: float, known: Known, context: QueueContext, rng: random.Random, tell: Tell
) -> Iterator[Drawn]:
    """Yield pairs by |r(a) - r(b)| of the plan's first model, smallest first: its preference is weakest there.

    See `_ordered`.
    """
    if not plan.models:
        raise UsageError("the queue of uncertain pairs goes by a reward model: name one")
    yield from _ordered(plan.source, plan.models[:1], lambda by: abs(by[0]), share, known, context, rng, tell)


def disagreement(
    plan: QueuePlan, share: float, known: Known, context: QueueContext, rng: random.Random, tell: Tell
) -> Iterator[Drawn]:
    """Yield pairs by the standard deviation of r(a) - r(b) over the plan's models, largest first. See `_ordered`."""
    if len(set(plan.models)) < 2:
        raise UsageError("the queue of disagreement goes by two reward models or more: name them")
    models = list(dict.fromkeys(plan.models))
    yield from _ordered(plan.source, models, lambda by: -pstdev(by), share, known, context, rng, tell)


def _ordered(
    source: str,
    models: Sequence[str],
    measure: Measure,
    share: float,
    known: Known,
    context: QueueContext,
    rng: random.Random,
    tell: Tell,
) -> Iterator[Drawn]:
    """Yield pairs of the samples of one prompt: scored ones by `measure`, smallest first, and random ones.

    At least `share` of the pairs are random. Raises UsageError if there are no pairs, and what `context.score` raises.
    """
    if context.score is None:
        raise UsageError("nothing can score pairs here: choose another queue")
    iterations = SampledIterations(source, tell)
    iterations.check_any()
    pairs = ScoredPairs(iterations, models, measure, context.score, context, rng)
    given = at_random = 0
    while True:
        context.heed()
        pairs.look_ahead()
        randomly = at_random < share * (given + 1)
        pair = None if randomly else pairs.first(known)
        early = at_random < share * given + _IN_ADVANCE
        if pair is None and (randomly or early or not pairs.what_comes):
            pair, randomly = pairs.any(known), True
        if pair is not None:
            given, at_random = given + 1, at_random + randomly
            yield pair
        elif pairs.what_comes:
            yield Wait(pairs.what_comes)
        elif iterations.are_over():
            return
        elif iterations.newest() is None:
            yield Wait(iterations.what_comes)
