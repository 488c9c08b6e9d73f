"""Learning of a reward model: the head that it begins with, the loss of comparisons, and optimiser steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from trainer import maths
from trainer.arrays import pad
from trainer.config.pairs import RewardModelConfig, RewardTrainConfig
from trainer.distributed.ranks import ALONE, Ranks
from trainer.errors import UsageError
from trainer.fitting.optimisation import StepOptimizer, accumulate, shared_gradient
from trainer.models.adapters import Parameters
from trainer.pairs.groups import Group, Pair, Progress, Ranking, micro_batches
from trainer.reward_model.network import RewardModel
from trainer.reward_model.pair_evaluation import baseline, pair_rows

Floats = npt.NDArray[np.float64]

FOLDS = 5
MOST_COMPARISONS = 4096
"""More of them hardly change so few numbers."""
PENALTIES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3)
"""Candidates, where the mean square of a difference between two states is 1. From 0.1 on, the head is near 0."""
_STEPS = 50


class PairBatch(NamedTuple):
    """Groups of comparisons, right-padded: N sequences of up to L tokens, P pairs, R rankings of up to K."""

    sequences: mx.array  # [N, L] ids
    lengths: mx.array  # [N]
    starts: mx.array  # [N] places where completions begin
    better: mx.array  # [P] rows; for a tie, either one
    worse: mx.array  # [P] rows
    is_tie: mx.array  # [P]
    margins: mx.array  # [P] logits; 0 for a tie
    weights: mx.array  # [P] weights in the loss; those of a group's pairs and rankings sum to 1
    rankings: mx.array  # [R, K] rows
    ranks: mx.array  # [R, K] 0 is the best
    ranking_mask: mx.array  # [R, K]
    ranking_weights: mx.array  # [R]


class RewardLossSums(NamedTuple):
    """Loss and counts of one micro-batch, which add up to those of a step."""

    loss: mx.array  # over its groups
    right: mx.array  # decided pairs whose better completion scores higher; equal scores count half
    lead: mx.array  # over decided pairs, logits
    decided: mx.array  # pairs


class RewardLearner:
    """Gradients of the preference loss, and optimiser steps of adapter and head together."""

    def __init__(
        self, model: RewardModel, config: RewardModelConfig, *, total_steps: int, ranks: Ranks = ALONE
    ) -> None:
        self.model = model
        self.ranks = ranks
        self.config = config
        self.optimizer = StepOptimizer(config.optim, model.parameters(), total_steps=total_steps)

    def train(self, groups: Sequence[Group], number: int, progress: Progress) -> dict[str, Any]:
        """Take step `number`, counted from 1, down the gradient of the mean loss over `groups`.

        Returns the fields of `RewardModelStep` that were measured before the step; NaN without decided pairs.
        """
        gradients, sums = self.gradients(groups, progress)
        loss, right, lead, decided = (float(value) for value in sums)
        return {
            "loss": loss / len(groups),
            "accuracy": right / decided if decided else math.nan,
            "lead": lead / decided if decided else math.nan,
            **self.optimizer.step(number, gradients, loss, self.model.parameters(), self.model.update),
        }

    def gradients(
        self, groups: Sequence[Group], progress: Progress = lambda done, total: None
    ) -> tuple[Parameters, RewardLossSums]:
        """Return the gradient of the mean loss over `groups`, and the sums over all of them.

        The split into ranks and micro-batches does not change the result.
        """

        def loss(batch: PairBatch) -> tuple[mx.array, RewardLossSums]:
            found = preference_loss(self.model, batch)
            return found.loss / len(groups), found

        def gradient(share: Sequence[Group]) -> tuple[Parameters, RewardLossSums]:
            parts = micro_batches(share, self.config.optim.micro_batch_tokens, progress)
            return accumulate(
                loss,
                self.model.parameters(),
                (to_batch(part, self.config.train) for part in parts),
                put=self.model.update,
                backbone=self.model.backbone,
                grad_checkpoint=self.config.optim.grad_checkpoint,
            )

        return shared_gradient(self.ranks, groups, [group.tokens for group in groups], gradient)


def to_batch(groups: Sequence[Group], config: RewardTrainConfig) -> PairBatch:
    """Return `groups` as arrays."""
    sequences: list[Sequence[int]] = []
    starts: list[int] = []
    pairs: list[tuple[Pair, int, float]] = []  # pair, first row of its group, weight
    rankings: list[tuple[Ranking, int, float]] = []
    for group in groups:
        first = len(sequences)
        sequences += group.sequences
        starts += group.starts
        choice = config.rankings == "plackett-luce"
        # A judgement goes into one loss. A group counts once, however many it has (Ouyang et al. 2022, section 3.4).
        terms = sum(1 if choice and ranking else len(found) for found, ranking in group.judged)
        for found, ranking in group.judged:
            as_ranking = choice and ranking is not None
            pairs += [(pair, first, 0.0 if as_ranking else 1 / terms) for pair in found]
            if as_ranking and ranking is not None:
                rankings.append((ranking, first, 1 / terms))
    return PairBatch(
        sequences=mx.array(pad(sequences)),
        lengths=mx.array([len(sequence) for sequence in sequences]),
        starts=mx.array(starts),
        better=mx.array([first + pair.better for pair, first, _ in pairs]),
        worse=mx.array([first + pair.worse for pair, first, _ in pairs]),
        is_tie=mx.array([pair.is_tie for pair, _, _ in pairs]),
        margins=mx.array([0.0 if pair.is_tie else config.margin * (pair.strength - 1) for pair, _, _ in pairs]),
        weights=mx.array([weight for _, _, weight in pairs]),
        rankings=mx.array(pad([[first + place for place in one.places] for one, first, _ in rankings])),
        ranks=mx.array(pad([one.ranks for one, _, _ in rankings])),
        ranking_mask=mx.array(pad([[1] * len(one.places) for one, _, _ in rankings])),
        ranking_weights=mx.array([weight for _, _, weight in rankings]),
    )


def preference_loss(model: RewardModel, batch: PairBatch) -> RewardLossSums:
    """Compute the loss of a batch, averaged over each group's terms and summed over the groups.

    Pairs use Bradley-Terry with a margin, or Davidson if the model allows ties; rankings use Plackett-Luce.
    """
    rewards = model.scores(batch.sequences, batch.lengths, batch.starts) / model.scale.logit_std
    leads = rewards[batch.better] - rewards[batch.worse]
    if model.log_nu is None:
        losses = maths.bradley_terry_loss(leads, batch.margins)
    else:
        logprobs = maths.davidson_logprobs(leads - batch.margins, model.log_nu)
        losses = -mx.where(batch.is_tie, logprobs[:, 1], logprobs[:, 0])
    loss = (batch.weights * losses).sum()
    if batch.rankings.size:
        rankings = maths.plackett_luce_loss(rewards[batch.rankings], batch.ranks, batch.ranking_mask)
        loss = loss + (batch.ranking_weights * rankings).sum()
    decided = mx.logical_not(batch.is_tie)
    right = (leads > 0).astype(mx.float32) + 0.5 * (leads == 0)
    return RewardLossSums(
        loss,
        mx.where(decided, right, 0.0).sum(),
        mx.where(decided, leads, 0.0).sum(),
        decided.sum(),
    )


class Differences(NamedTuple):
    """P decided pairs: how the state of the better completion differs from that of the worse one."""

    states: Floats  # [P, D]
    margins: Floats  # [P] logits by which the better one must lead
    weights: Floats  # [P] those of a comparison sum to 1
    prompts: npt.NDArray[np.intp]  # [P] number of the prompt


class FittedHead(NamedTuple):
    """A head, and how well heads like it do on comparisons that they were not fitted to."""

    weight: Floats  # [D] the score of a state, in logits
    penalty: float
    accuracy: float  # in the cross-validation
    pairs: int


def check_enough(groups: Iterable[Group]) -> None:
    """Raise UsageError if fewer than `FOLDS` prompts have a decided pair."""
    decided: set[int] = set()
    for group in groups:
        if any(not pair.is_tie for pair in group.pairs):
            decided.add(group.prompt)
        if len(decided) == FOLDS:
            return
    raise UsageError(
        f"train.head = fitted needs decided comparisons of at least {FOLDS} prompts to train on, and there "
        f"{'is' if len(decided) == 1 else 'are'} {len(decided)}: label more, or use train.head = random"
    )


def differences(groups: Sequence[Group], states: Floats, margin: float) -> Differences:
    """Return the decided pairs of `groups`.

    states: [N, D] of all their sequences, one group after the other; margin: logits for each step of strength above
    the first.
    """
    found = [(group, pair, better, worse) for group, pair, better, worse in pair_rows(groups) if not pair.is_tie]
    better, worse = (np.array([row[place] for row in found], dtype=np.intp) for place in (2, 3))
    return Differences(
        states=states[better] - states[worse],
        margins=np.array([margin * (pair.strength - 1) for _, pair, *_ in found], dtype=np.float64),
        weights=np.array([1 / sum(not one.is_tie for one in group.pairs) for group, *_ in found], dtype=np.float64),
        prompts=np.array([group.prompt for group, *_ in found], dtype=np.intp),
    )


def fit_head(found: Differences, seed: Sequence[int], *, parts: int = 1) -> FittedHead:
    """Fit a head w to `found`, pairs of at least `FOLDS` prompts: the best linear one on states that are not trained.

    Where a reward model of few comparisons should begin: a head of random numbers moves the adapter in a random
    direction until it has been learnt itself, and fitting it first distorts the states less (Kumar et al. 2022,
    "Fine-tuning can distort pretrained features").

        min_w  sum_p c_p log(1 + exp(m_p - w . d_p)) / sum_p c_p  +  penalty/2 s^2 |w|^2

    d_p: the differences; c_p: their weights; m_p: their margins; s^2: the mean square of |d_p|, of each of the `parts`
    of a state apart, so that none counts for more because its numbers are larger. The penalty is the one of `PENALTIES`
    whose heads have the lowest loss in a cross-validation, in which the pairs of a prompt stay together. seed: of the
    folds. Raises UsageError if no states differ.
    """
    prompts, members = np.unique(found.prompts, return_inverse=True)
    squares = np.square(found.states).mean(axis=0).reshape(parts, -1).sum(axis=1)
    if not squares.all():
        raise UsageError("train.head = fitted found no difference between the completions: use train.head = random")
    scale = np.repeat(np.sqrt(squares), found.states.shape[1] // parts)
    states = found.states / scale
    basis = np.eye(states.shape[1])
    if len(states) < states.shape[1]:  # the best head is a sum of the differences, so it is in their span
        basis, places = np.linalg.qr(states.T)
        states = places.T
    scaled = found._replace(states=states)
    fold = (np.random.default_rng(seed).permutation(len(prompts)) % FOLDS)[members]
    leads = np.empty((len(PENALTIES), len(fold)))
    for number in range(FOLDS):
        out = fold == number
        kept = Differences._make(values[~out] for values in scaled)
        weight = np.zeros(scaled.states.shape[1])
        for place in reversed(range(len(PENALTIES))):  # from the strongest on: each begins where the one before ended
            weight = _fitted(kept, PENALTIES[place], weight)
            leads[place, out] = scaled.states[out] @ weight
    losses = np.logaddexp(0.0, found.margins - leads) @ found.weights
    best = int(np.argmin(losses))
    weight = basis @ _fitted(scaled, PENALTIES[best], np.zeros(scaled.states.shape[1])) / scale
    return FittedHead(weight, PENALTIES[best], baseline(leads[best]).accuracy, len(fold))


def _fitted(found: Differences, penalty: float, weight: Floats) -> Floats:
    """Return the head of one penalty by Newton's method, from `weight` on."""
    shares = found.weights / found.weights.sum()
    for _ in range(_STEPS):
        wrong = 1 / (1 + np.exp(np.clip(found.states @ weight - found.margins, -500, 500)))
        gradient = found.states.T @ (shares * wrong) - penalty * weight
        curvature = (found.states * (shares * wrong * (1 - wrong))[:, None]).T @ found.states
        curvature[np.diag_indices_from(curvature)] += penalty
        step = np.linalg.solve(curvature, gradient)
        weight = weight + step
        if float(np.abs(found.states @ step).max()) < 1e-6:
            break
    return weight
