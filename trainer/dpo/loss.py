"""Loss of a micro-batch of pairs, and the implicit reward that it is computed from."""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from trainer import maths
from trainer.arrays import filled
from trainer.config.dpo import DPOTrainConfig
from trainer.dpo.batches import Completions, PairBatch
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.logprobs import token_logprobs


class LossSums(NamedTuple):
    """Sums over the pairs of a micro-batch; in the loss, a group counts once."""

    loss: mx.array
    right: mx.array  # pairs whose better completion is ahead; equal ones count half
    lead: mx.array
    chosen_reward: mx.array
    rejected_reward: mx.array
    chosen_logprob: mx.array
    rejected_logprob: mx.array
    pairs: mx.array


def pair_loss(actor: ActorCriticLLM, batch: PairBatch, reference: mx.array, config: DPOTrainConfig) -> LossSums:
    """Compute DPO's or IPO's loss of the current policy.

    reference: [N] log-probs of the completions under the reference.
    """
    logprobs = completion_logprobs(actor, batch.completions)
    rewards = implicit_rewards(logprobs, reference, batch.completions.mask, config)
    chosen, rejected = rewards[batch.better], rewards[batch.worse]
    lead = chosen - rejected
    right = (lead > 0).astype(mx.float32) + 0.5 * (lead == 0)
    return LossSums(
        (batch.weights * losses(lead, config)).sum(),
        right.sum(),
        lead.sum(),
        chosen.sum(),
        rejected.sum(),
        logprobs[batch.better].sum(),
        logprobs[batch.worse].sum(),
        mx.array(float(lead.size)),
    )


def completion_logprobs(actor: ActorCriticLLM, completions: Completions) -> mx.array:
    """Return log pi(completion | prompt), summed over the completion's own tokens: [N]."""
    width = completions.tokens.shape[1]
    forward = actor(completions.sequences, completions.prompt_lengths, width, want="logits")
    logprobs = token_logprobs(filled(forward.logits), completions.tokens)
    return mx.where(completions.mask > 0, logprobs, 0.0).sum(axis=1)


def implicit_rewards(logprobs: mx.array, reference: mx.array, mask: mx.array, config: DPOTrainConfig) -> mx.array:
    """Return beta (log pi - log pi_ref) of each completion; for IPO a mean over its tokens.

    [N], [N], [N, T] -> [N].
    """
    log_ratios = logprobs - reference
    if config.loss == "ipo":
        log_ratios = log_ratios / mx.maximum(mask.sum(axis=1), 1)
    return config.beta * log_ratios


def losses(lead: mx.array, config: DPOTrainConfig) -> mx.array:
    """Return the losses of pairs whose better completion has `lead` more implicit reward. [P] -> [P]."""
    beta = config.beta
    if config.loss == "ipo":
        return maths.ipo_loss(lead / beta, beta=beta)
    return maths.dpo_loss(lead / beta, beta=beta, label_smoothing=config.label_smoothing)
