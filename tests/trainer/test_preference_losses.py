"""The losses of preferences, DPO's among them, against closed forms, slow float64 versions and finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

from trainer.maths import (
    bradley_terry_loss,
    davidson_logprobs,
    dpo_loss,
    ipo_loss,
    kl_divergence,
    plackett_luce_loss,
)

RNG = np.random.default_rng(3)


def gradient(loss: Callable[[mx.array], mx.array], x: np.ndarray) -> np.ndarray:
    return np.array(mx.grad(loss)(mx.array(x.astype(np.float32))))


def slow_gradient(loss: Callable[[np.ndarray], float], x: np.ndarray, step: float = 1e-6) -> np.ndarray:
    found = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        shift = np.zeros_like(x)
        shift[place] = step
        found[place] = (loss(x + shift) - loss(x - shift)) / (2 * step)
    return found


def slow_plackett_luce(rewards: np.ndarray, ranks: list[int]) -> float:
    """Compute the mean over choices, one after the other, in float64."""
    losses = []
    for reward, rank in zip(rewards, ranks, strict=True):
        pool = [other for other, place in zip(rewards, ranks, strict=True) if place >= rank]
        if len(pool) > 1:
            losses.append(math.log(sum(math.exp(other) for other in pool)) - reward)
    return sum(losses) / len(losses)


def test_the_bradley_terry_loss_is_minus_log_sigmoid_of_the_lead_beyond_the_margin() -> None:
    lead = RNG.normal(size=50) * 4
    margin = RNG.uniform(0, 2, size=50)
    expected = -np.log(1 / (1 + np.exp(margin - lead)))
    found = bradley_terry_loss(mx.array(lead.astype(np.float32)), mx.array(margin.astype(np.float32)))
    np.testing.assert_allclose(np.array(found), expected, rtol=1e-5, atol=1e-6)
    assert float(bradley_terry_loss(mx.array(0.0))) == pytest.approx(math.log(2))


def test_leads_that_are_far_off_give_a_finite_loss_and_gradient() -> None:
    lead = mx.array([-1e4, 1e4])
    np.testing.assert_allclose(np.array(bradley_terry_loss(lead)), [1e4, 0])
    np.testing.assert_allclose(gradient(lambda x: bradley_terry_loss(x).sum(), np.array([-1e4, 1e4])), [-1, 0])


def test_the_gradient_of_the_bradley_terry_loss_is_minus_the_probability_of_being_wrong() -> None:
    lead = RNG.normal(size=20)
    found = gradient(lambda x: bradley_terry_loss(x, 0.5).sum(), lead)
    np.testing.assert_allclose(found, -1 / (1 + np.exp(lead - 0.5)), rtol=1e-4)


@pytest.mark.parametrize("nu", [0.1, 1.0, 5.0])
def test_davidsons_probabilities_are_those_of_his_formula_and_sum_to_one(nu: float) -> None:
    first, second = RNG.normal(size=(2, 30))
    strengths = np.exp(first), np.exp(second)
    tie = nu * np.sqrt(strengths[0] * strengths[1])
    expected = np.stack([strengths[0], tie, strengths[1]], axis=-1) / (strengths[0] + strengths[1] + tie)[:, None]
    found = np.exp(np.array(davidson_logprobs(mx.array((first - second).astype(np.float32)), mx.array(math.log(nu)))))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_without_ties_davidson_is_bradley_terry_and_given_a_decision_always() -> None:
    lead = mx.array(RNG.normal(size=30).astype(np.float32))
    none = davidson_logprobs(lead, mx.array(-80.0))
    np.testing.assert_allclose(np.array(-none[:, 0]), np.array(bradley_terry_loss(lead)), rtol=1e-4, atol=1e-6)
    some = np.exp(np.array(davidson_logprobs(lead, mx.array(0.7))))
    decided = some[:, 0] / (some[:, 0] + some[:, 2])
    np.testing.assert_allclose(decided, 1 / (1 + np.exp(-np.array(lead))), rtol=1e-4)


@pytest.mark.parametrize("ranks", [[0, 1], [0, 1, 2, 3], [2, 0, 1], [0, 0, 1], [1, 0, 0, 1], [0, 0, 0]])
def test_the_plackett_luce_loss_and_its_gradient_are_those_of_the_slow_version(ranks: list[int]) -> None:
    rewards = RNG.normal(size=len(ranks))
    padded = np.concatenate([rewards, [99.0, -99.0]])[None]
    places = mx.array([[*ranks, 0, 9]])
    mask = mx.array([[1] * len(ranks) + [0, 0]])
    found = plackett_luce_loss(mx.array(padded.astype(np.float32)), places, mask)
    assert float(found[0]) == pytest.approx(slow_plackett_luce(rewards, ranks), rel=1e-5)
    slow = slow_gradient(lambda x: slow_plackett_luce(x, ranks), rewards)
    fast = gradient(lambda x: plackett_luce_loss(x, places, mask).sum(), padded)[0]
    np.testing.assert_allclose(fast, [*slow, 0, 0], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("shift", [-50.0, 3.0, 200.0])
def test_a_shift_of_all_rewards_changes_no_loss(shift: float) -> None:
    rewards = mx.array(RNG.normal(size=(3, 4)).astype(np.float32))
    ranks, mask = mx.array([[0, 1, 2, 3], [0, 0, 1, 1], [3, 2, 1, 0]]), mx.ones((3, 4))
    np.testing.assert_allclose(
        np.array(plackett_luce_loss(rewards, ranks, mask)),
        np.array(plackett_luce_loss(rewards + shift, ranks, mask)),
        rtol=1e-3,
    )


def test_a_ranking_without_a_choice_costs_nothing_and_has_a_finite_gradient() -> None:
    ranks, mask = mx.array([[0, 1]]), mx.array([[1, 0]])
    assert float(plackett_luce_loss(mx.array([[2.0, 1.0]]), ranks, mask)[0]) == 0
    np.testing.assert_array_equal(
        gradient(lambda x: plackett_luce_loss(x, ranks, mask).sum(), np.array([[2.0, 1.0]])), [[0, 0]]
    )


def test_the_ranking_loss_is_taken_over_members_and_never_over_rankings() -> None:
    """There are as many rankings as members, so that mixed-up axes show in the numbers."""
    rewards = mx.array([[0.3, 1.9, -0.4], [2.0, 0.1, 0.5], [-1.0, 0.2, 3.0]])
    ranks, mask = mx.array([[0, 1, 2], [1, 0, 1], [2, 0, 1]]), mx.array([[1, 1, 1], [1, 1, 1], [1, 1, 0]])
    together = plackett_luce_loss(rewards, ranks, mask)
    alone = [plackett_luce_loss(*(x[row : row + 1] for x in (rewards, ranks, mask))) for row in range(3)]
    np.testing.assert_allclose(np.array(together), np.array(mx.concatenate(alone)), atol=1e-6)


# DPO, IPO and the divergence of two distributions


def single(x: np.ndarray) -> mx.array:
    return mx.array(x.astype(np.float32))


def slow_dpo(lead: np.ndarray, beta: float, smoothing: float) -> np.ndarray:
    """Compute the loss as the equation is written, in float64."""
    right, wrong = 1 / (1 + np.exp(-beta * lead)), 1 / (1 + np.exp(beta * lead))
    return -(1 - smoothing) * np.log(right) - smoothing * np.log(wrong)


def slope(loss: Callable[[np.ndarray], np.ndarray], x: np.ndarray, step: float = 1e-5) -> np.ndarray:
    return (loss(x + step) - loss(x - step)) / (2 * step)


@pytest.mark.parametrize("beta", [0.1, 0.5, 3.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_sigmoid_loss_and_its_gradient_are_those_of_the_slow_version(beta: float, smoothing: float) -> None:
    lead = RNG.normal(size=60) * 3
    found = dpo_loss(single(lead), beta=beta, label_smoothing=smoothing)
    np.testing.assert_allclose(np.array(found), slow_dpo(lead, beta, smoothing), rtol=1e-5)
    gradient = mx.grad(lambda x: dpo_loss(x, beta=beta, label_smoothing=smoothing).sum())(single(lead))
    expected = slope(lambda x: slow_dpo(x, beta, smoothing), lead)
    np.testing.assert_allclose(np.array(gradient), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("beta", [0.1, 0.5, 3.0])
def test_the_ipo_loss_and_its_gradient_are_those_of_the_slow_version(beta: float) -> None:
    lead = RNG.normal(size=60) * 3

    def slow(x: np.ndarray) -> np.ndarray:
        return (x - 1 / (2 * beta)) ** 2

    np.testing.assert_allclose(np.array(ipo_loss(single(lead), beta=beta)), slow(lead), rtol=1e-4, atol=1e-5)
    gradient = mx.grad(lambda x: ipo_loss(x, beta=beta).sum())(single(lead))
    np.testing.assert_allclose(np.array(gradient), slope(slow, lead), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("beta", [0.1, 0.25, 2.0])
def test_where_policy_and_reference_are_equal_the_losses_are_known(beta: float) -> None:
    even = mx.zeros((3,))
    for smoothing in (0.0, 0.3):
        losses = np.array(dpo_loss(even, beta=beta, label_smoothing=smoothing))
        np.testing.assert_allclose(losses, math.log(2), rtol=2e-7)
    np.testing.assert_allclose(np.array(ipo_loss(even, beta=beta)), 1 / (4 * beta**2), rtol=2e-7)


def test_leads_that_are_far_off_give_a_finite_loss_and_gradient_of_dpo() -> None:
    far = mx.array([-1e5, 1e5])
    np.testing.assert_allclose(np.array(dpo_loss(far, beta=0.1)), [1e4, 0])
    np.testing.assert_allclose(np.array(mx.grad(lambda x: dpo_loss(x, beta=0.1).sum())(far)), [-0.1, 0], rtol=1e-6)


def test_the_divergence_of_two_distributions_is_that_of_the_slow_version_and_0_of_equal_ones() -> None:
    logits, other = RNG.normal(size=(2, 3, 11)), RNG.normal(size=(2, 3, 11))
    logits[0, 0, 3] = other[0, 0, 3] = -np.inf
    p, q = (np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True) for x in (logits, other))
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = np.where(p > 0, p * (np.log(p) - np.log(q)), 0).sum(axis=-1)
    np.testing.assert_allclose(np.array(kl_divergence(single(logits), single(other))), expected, rtol=1e-4)
    assert np.array(kl_divergence(single(logits), single(logits))).tolist() == np.zeros((2, 3)).tolist()


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_the_divergence_of_half_precision_logits_is_taken_in_float32(dtype: mx.Dtype) -> None:
    normals = single(RNG.normal(size=(3, 11)))
    logits, other = normals.astype(dtype), normals[:, ::-1].astype(dtype)
    exact = kl_divergence(logits.astype(mx.float32), other.astype(mx.float32))
    found = kl_divergence(logits, other)
    assert found.dtype == mx.float32
    np.testing.assert_allclose(np.array(found), np.array(exact), rtol=1e-6)
