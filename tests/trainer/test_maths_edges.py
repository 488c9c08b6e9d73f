"""Edge cases of formulas: huge logits, values that hardly vary, rows without tokens."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest
import reference
from reference import float64

from trainer import maths

# Sixteenths, which float32 holds exactly at this height, so that only the arithmetic can be at fault.
LOGITS = mx.array(np.random.default_rng(0).integers(-64, 64, (3, 11)).astype(np.float32) / 16)
HEIGHTS = mx.array([0.0, 30_000.0, -30_000.0])[:, None]


def test_the_entropy_does_not_depend_on_the_height_of_each_rows_logits() -> None:
    np.testing.assert_allclose(
        float64(maths.entropy(LOGITS + HEIGHTS)), reference.entropy(float64(LOGITS)), atol=1e-5, rtol=0
    )


def test_whitening_constant_values_gives_zeros_and_no_nan() -> None:
    assert not maths.whiten(mx.full((2, 3), 0.5), mx.ones((2, 3))).any()


def test_whitening_a_padded_batch_without_real_tokens_gives_zeros() -> None:
    assert not maths.whiten(mx.full((2, 3), math.nan), mx.zeros((2, 3))).any()


def test_returns_that_vary_only_by_rounding_leave_the_explained_variance_unknown() -> None:
    returns, values, mask = mx.array([[1e-7, -1e-7]]), mx.array([[3.0, -1.0]]), mx.ones((1, 2))
    assert math.isnan(maths.explained_variance(values, returns, mask).item())


@pytest.mark.parametrize("scale", [1e-5, 1e-2, 1.0])
def test_returns_of_any_other_scale_have_an_explained_variance(scale: float) -> None:
    returns, mask = scale * mx.array([[1.0, -1.0, 2.0, 0.0]]), mx.ones((1, 4))
    assert maths.explained_variance(0.5 * returns, returns, mask).item() == pytest.approx(0.75, abs=1e-4)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 1, 3)])
def test_davidsons_distribution_is_the_same_whatever_the_shape_of_the_leads(shape: tuple[int, ...]) -> None:
    lead = mx.array(np.random.default_rng(1).normal(0, 2, shape).astype(np.float32))
    found = maths.davidson_logprobs(lead, mx.array(0.3))
    assert found.shape == (*shape, 3)
    one_by_one = [maths.davidson_logprobs(each[None], mx.array(0.3))[0] for each in lead.reshape(-1)]
    np.testing.assert_allclose(float64(found).reshape(-1, 3), float64(mx.stack(one_by_one)), atol=1e-6)


def test_the_ranking_loss_is_taken_over_members_and_never_over_rankings() -> None:
    """There are as many rankings as members, so that mixed-up axes show in the numbers."""
    rewards = mx.array([[0.3, 1.9, -0.4], [2.0, 0.1, 0.5], [-1.0, 0.2, 3.0]])
    ranks, mask = mx.array([[0, 1, 2], [1, 0, 1], [2, 0, 1]]), mx.array([[1, 1, 1], [1, 1, 1], [1, 1, 0]])
    together = maths.plackett_luce_loss(rewards, ranks, mask)
    alone = [maths.plackett_luce_loss(*(x[row : row + 1] for x in (rewards, ranks, mask))) for row in range(3)]
    np.testing.assert_allclose(float64(together), float64(mx.concatenate(alone)), atol=1e-6)


@pytest.mark.parametrize(("reward", "rank"), [(3.0, 0), (3.0, 1), (-3.0, 1), (0.0, 9)])
def test_a_place_that_is_not_a_member_never_changes_a_ranking_loss(reward: float, rank: int) -> None:
    members = maths.plackett_luce_loss(mx.array([[-1.0, 0.2]]), mx.array([[2, 0]]), mx.ones((1, 2)))
    padded = mx.array([[-1.0, 0.2, reward]]), mx.array([[2, 0, rank]]), mx.array([[1, 1, 0]])
    assert maths.plackett_luce_loss(*padded).item() == pytest.approx(members.item(), rel=1e-6)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_the_divergence_of_half_precision_logits_is_taken_in_float32(dtype: mx.Dtype) -> None:
    logits, other = LOGITS.astype(dtype), LOGITS[:, ::-1].astype(dtype)
    exact = maths.kl_divergence(logits.astype(mx.float32), other.astype(mx.float32))
    found = maths.kl_divergence(logits, other)
    assert found.dtype == mx.float32
    np.testing.assert_allclose(float64(found), float64(exact), rtol=1e-6)
