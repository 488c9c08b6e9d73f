"""Loss of a micro-batch of comparisons."""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from trainer import maths
from trainer.reward_model.batches import PairBatch
from trainer.reward_model.model import RewardModel


class LossSums(NamedTuple):
    """Sums over a micro-batch."""

    loss: mx.array  # over its groups
    right: mx.array  # decided pairs whose better completion scores higher; equal scores count half
    lead: mx.array  # over decided pairs, logits
    decided: mx.array  # pairs


def preference_loss(model: RewardModel, batch: PairBatch) -> LossSums:
    """Compute the loss of a batch, averaged over each group's terms and summed over the groups.

    Pairs use Bradley-Terry with a margin, or Davidson if the model allows ties; rankings use Plackett-Luce.
    """
    rewards = model.scores(batch.sequences, batch.lengths) / model.logit_std
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
    return LossSums(
        loss,
        mx.where(decided, right, 0.0).sum(),
        mx.where(decided, leads, 0.0).sum(),
        decided.sum(),
    )
