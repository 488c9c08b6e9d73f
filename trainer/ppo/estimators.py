"""Advantages without a critic: what a sequence got, less a baseline that other samples give.

Rows are in groups: the `samples_per_prompt` samples of a prompt follow one another. Each function takes a batch whose
rewards are shaped and returns it with `advantages`, `returns` (rewards-to-go) and `baselines` filled.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from trainer import maths
from trainer.arrays import filled
from trainer.config.schema import PPOConfig
from trainer.rollout.experience import Experience

GROUP_EPSILON = 1e-4  # added to a group's deviation, as in TRL: groups that all got the same have advantages of 0


def reinforce(batch: Experience, ppo: PPOConfig, samples_per_prompt: int) -> Experience:
    """A_t = G_t - b, b the mean total reward of all other sequences of the batch.

    Williams 1992; the others' mean instead of a moving average needs no memory and has no bias.
    """
    totals = filled(batch.rewards).sum(axis=1)
    return _against(batch, ppo, maths.leave_one_out_mean(totals, batch.size))


def rloo(batch: Experience, ppo: PPOConfig, samples_per_prompt: int) -> Experience:
    """A_t = R - b for every token: the response is one action, b the mean R of the prompt's other samples.

    Ahmadian et al. 2024 (arXiv 2402.14740). ppo.gamma plays no part.
    """
    totals = filled(batch.rewards).sum(axis=1)
    baselines = maths.leave_one_out_mean(totals, samples_per_prompt)
    return _one_action(batch, totals - baselines)._replace(baselines=baselines)


def remax(batch: Experience, ppo: PPOConfig, samples_per_prompt: int) -> Experience:
    """A_t = G_t - b, b the score of the policy's greedy response to the prompt (`add_greedy_baselines`).

    Li et al. 2023 (arXiv 2310.10505).
    """
    return _against(batch, ppo, filled(batch.baselines))


def grpo(batch: Experience, ppo: PPOConfig, samples_per_prompt: int) -> Experience:
    """A_t = (R - mean R) / std R over the prompt's samples, for every token; without `ppo.group_std` R - mean R.

    Shao et al. 2024 (arXiv 2402.03300); without the deviation, which favours prompts that are nearly always or nearly
    never answered well, Liu et al. 2025 (arXiv 2503.20783). ppo.gamma plays no part.
    """
    totals = filled(batch.rewards).sum(axis=1)
    baselines, deviations = maths.group_moments(totals, samples_per_prompt)
    scales = deviations + GROUP_EPSILON if ppo.group_std else mx.ones_like(deviations)
    batch = _one_action(batch, (totals - baselines) / scales)
    return batch._replace(baselines=baselines, advantage_scales=scales)


ESTIMATORS: dict[str, Callable[[Experience, PPOConfig, int], Experience]] = {
    "reinforce": reinforce,
    "rloo": rloo,
    "remax": remax,
    "grpo": grpo,
}


def _against(batch: Experience, ppo: PPOConfig, baselines: mx.array) -> Experience:
    """Each token's reward-to-go less its sequence's baseline."""
    returns = maths.discounted_sums(filled(batch.rewards), batch.mask, ppo.gamma)
    advantages = mx.where(batch.mask > 0, returns - baselines[:, None], 0.0)
    return batch._replace(returns=returns, advantages=advantages, baselines=baselines)


def _one_action(batch: Experience, advantages: mx.array) -> Experience:
    """One advantage [B] for all tokens of each sequence."""
    returns = maths.discounted_sums(filled(batch.rewards), batch.mask, 1.0)
    return batch._replace(returns=returns, advantages=mx.where(batch.mask > 0, advantages[:, None], 0.0))
