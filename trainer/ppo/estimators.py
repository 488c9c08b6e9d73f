"""Advantages without a critic: a sequence's reward minus a baseline from other samples.

Rows are in groups: the `samples_per_prompt` samples of a prompt are consecutive. Each function takes a batch with
shaped rewards and returns it with `advantages`, `returns` (rewards-to-go) and `baselines` filled. Sequences that are
left out, with an empty mask, are in no baseline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import mlx.core as mx

from trainer import maths
from trainer.arrays import filled
from trainer.config.ppo import PPOConfig
from trainer.data import Prompt
from trainer.ppo.steps import compute_rewards
from trainer.reward_types import Reward
from trainer.rollout.experience import Experience

GROUP_EPSILON = 1e-4  # added to a group's deviation, as in TRL: a group with equal rewards has advantages of 0


def reinforce(batch: Experience, ppo: PPOConfig, samples_per_prompt: int) -> Experience:
    """Compute A_t = G_t - b, where b is the mean total reward of all other sequences of the batch.

    Williams 1992. Unlike a moving average, the mean of the others needs no memory and has no bias.
    """
    return _against(batch, ppo, maths.leave_one_out_mean(_totals(batch), batch.size))


def rloo(batch: Experience, ppo: PPOConfig, samples_per_prompt: int) -> Experience:
    """Compute A_t = R - b for every token, where b is the mean R of the prompt's other samples.

    The whole response is one action, and `ppo.gamma` is ignored. Ahmadian et al. 2024 (arXiv 2402.14740).
    """
    totals = _totals(batch)
    baselines = maths.leave_one_out_mean(totals, samples_per_prompt)
    return _one_action(batch, totals - baselines)._replace(baselines=baselines)


def remax(batch: Experience, ppo: PPOConfig, samples_per_prompt: int) -> Experience:
    """Compute A_t = G_t - b, where b is the score of the policy's greedy response to the prompt.

    `add_greedy_baselines` provides b. Li et al. 2023 (arXiv 2310.10505).
    """
    return _against(batch, ppo, filled(batch.baselines))


def add_greedy_baselines(rewards: Reward, batch: Experience, best: Experience, prompts: Sequence[Prompt]) -> Experience:
    """Add as baseline of a prompt's samples, for `remax`, the score of the greedy response to it.

    best: a greedy response to each prompt; prompts: B, one per row. The greedy responses do not
    change the statistics of the rewards; scored last, they are normalised as the batch is. Raises RewardError.
    """
    samples = batch.size // best.size
    best, _ = compute_rewards(rewards, best, prompts[::samples], update_statistics=False)
    scores = filled(best.scores) + filled(best.token_scores).sum(axis=1)
    return batch._replace(baselines=mx.repeat(scores, samples))


def grpo(batch: Experience, ppo: PPOConfig, samples_per_prompt: int) -> Experience:
    """Compute A_t = (R - mean R) / std R over the prompt's samples, for every token.

    Shao et al. 2024 (arXiv 2402.03300). Without `ppo.group_std` it is R - mean R, because the deviation favours prompts
    that are nearly always or nearly never answered well (Liu et al. 2025, arXiv 2503.20783). `ppo.gamma` is ignored.
    """
    totals = _totals(batch)
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


def _totals(batch: Experience) -> mx.array:
    """Return R [B], the sum of each sequence's rewards; NaN for one that is left out."""
    return mx.where(mx.any(batch.mask > 0, axis=1), filled(batch.rewards).sum(axis=1), math.nan)


def _against(batch: Experience, ppo: PPOConfig, baselines: mx.array) -> Experience:
    """Set each token's advantage to its reward-to-go minus its sequence's baseline."""
    returns = maths.discounted_sums(filled(batch.rewards), batch.mask, ppo.gamma)
    advantages = mx.where(batch.mask > 0, returns - baselines[:, None], 0.0)
    return batch._replace(returns=returns, advantages=advantages, baselines=baselines)


def _one_action(batch: Experience, advantages: mx.array) -> Experience:
    """Give all tokens of a sequence the same advantage. advantages: [B]."""
    returns = maths.discounted_sums(filled(batch.rewards), batch.mask, 1.0)
    return batch._replace(returns=returns, advantages=mx.where(batch.mask > 0, advantages[:, None], 0.0))
