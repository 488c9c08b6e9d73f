"""Advantages without a critic: each estimator against its formula, written as loops, and their shared properties."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from batches import LENGTHS, random_batch, with_garbage
from reference import Floats, float64

from trainer.arrays import filled
from trainer.config.ppo import PPOConfig
from trainer.ppo.estimators import ESTIMATORS
from trainer.rollout.experience import Experience

COUNTS = [count for _, count in LENGTHS]
GREEDY = [0.3, 0.3, 0.3, -1.0, -1.0, -1.0]  # of two prompts with three samples each


def shaped(*, shift: float = 0.0, scale: float = 1.0, seed: int = 3) -> Experience:
    """Return a batch of two prompts with three samples each, with a reward on every token. shift: of each score."""
    batch = random_batch()
    draws = np.random.default_rng(seed).normal(0, 1, batch.mask.shape) * float64(batch.mask)
    for row, count in enumerate(COUNTS):
        draws[row, count - 1] += shift
    rewards = mx.array(scale * draws).astype(mx.float32)
    return batch._replace(rewards=rewards, baselines=mx.array(GREEDY))


def estimate(name: str, batch: Experience, **settings: Any) -> Experience:
    return ESTIMATORS[name](batch, PPOConfig(estimator=name, **settings), 3)


def others(row: int, rows: range) -> list[int]:
    return [other for other in rows if other != row]


def expected(name: str, batch: Experience, gamma: float, *, group_std: bool = True) -> Floats:
    """Compute advantages as the papers do, one sequence and token at a time."""
    rewards = float64(batch.rewards)
    totals = [rewards[row, :count].sum() for row, count in enumerate(COUNTS)]
    advantages = np.zeros_like(rewards)
    for row, count in enumerate(COUNTS):
        prompt = range(row // 3 * 3, row // 3 * 3 + 3)
        for t in range(count):
            to_go = sum(gamma ** (k - t) * rewards[row, k] for k in range(t, count))
            group = [totals[member] for member in prompt]
            advantages[row, t] = {
                "reinforce": to_go - np.mean([totals[other] for other in others(row, range(len(COUNTS)))]),
                "rloo": totals[row] - np.mean([totals[other] for other in others(row, prompt)]),
                "remax": to_go - GREEDY[row],
                "grpo": (totals[row] - np.mean(group)) / (np.std(group, ddof=1) + 1e-4 if group_std else 1),
            }[name]
    return advantages


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_each_estimator_is_its_formula(name: str, gamma: float) -> None:
    batch = shaped()
    found = estimate(name, batch, gamma=gamma)
    np.testing.assert_allclose(float64(found.advantages), expected(name, batch, gamma), atol=1e-5)


def test_grpo_without_the_deviation_is_its_formula() -> None:
    batch = shaped()
    found = estimate("grpo", batch, group_std=False)
    np.testing.assert_allclose(float64(found.advantages), expected("grpo", batch, 1.0, group_std=False), atol=1e-5)
    assert float64(found.advantage_scales).tolist() == [1.0] * 6


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_content_of_the_padding_changes_nothing(name: str) -> None:
    batch = shaped()
    plain = float64(estimate(name, batch).advantages)
    spoiled = batch._replace(rewards=mx.pad(filled(batch.rewards), ((0, 0), (0, 3))))
    wide = with_garbage(batch._replace(rewards=None), garbage=7.0)._replace(rewards=spoiled.rewards)
    np.testing.assert_array_equal(float64(estimate(name, wide).advantages)[:, : plain.shape[1]], plain)
    assert not float64(estimate(name, wide).advantages)[:, plain.shape[1] :].any()


@pytest.mark.parametrize("name", ["rloo", "grpo"])
def test_the_advantages_of_a_prompt_sum_to_zero_and_are_constant_in_a_response(name: str) -> None:
    advantages = float64(estimate(name, shaped()).advantages)
    firsts = advantages[:, 0]
    np.testing.assert_allclose([firsts[:3].sum(), firsts[3:].sum()], 0, atol=1e-5)
    for row, count in enumerate(COUNTS):
        assert (advantages[row, :count] == firsts[row]).all()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_returns_are_rewards_to_go_and_advantages_follow_from_the_saved_columns(name: str) -> None:
    batch = shaped()
    found = estimate(name, batch)
    rewards, returns = float64(batch.rewards), float64(found.returns)
    scales = float64(found.advantage_scales) if found.advantage_scales is not None else np.ones(6)
    for row, count in enumerate(COUNTS):
        np.testing.assert_allclose(returns[row, :count], rewards[row, :count][::-1].cumsum()[::-1], atol=1e-5)
        whole = returns[row, :1] if name in ("rloo", "grpo") else returns[row, :count]
        again = (whole - float64(found.baselines)[row]) / scales[row]
        np.testing.assert_allclose(float64(found.advantages)[row, : len(again)], again, atol=1e-5)
