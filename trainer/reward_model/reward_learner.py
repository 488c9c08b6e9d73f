"""Update of a reward model: comparisons as arrays, their loss, and one optimiser step of adapter and head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from trainer import maths
from trainer.arrays import pad
from trainer.config.reward_model import RewardModelConfig, RewardTrainConfig
from trainer.distributed.ranks import ALONE, Ranks
from trainer.fitting.gradients import StepOptimizer, accumulate, shared_gradient
from trainer.models.adapters import Parameters
from trainer.pairs.groups import Group, Pair, Progress, Ranking, micro_batches
from trainer.reward_model.network import RewardModel


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
