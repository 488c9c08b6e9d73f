"""The losses of direct preference optimisation against closed forms in float64, finite differences and known limits."""

from __future__ import annotations

import math
from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

from trainer.maths import bradley_terry_loss, dpo_loss, ipo_loss, kl_divergence

RNG = np.random.default_rng(5)


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


def test_the_sigmoid_loss_is_the_bradley_terry_loss_of_the_implicit_reward() -> None:
    lead = single(RNG.normal(size=20))
    np.testing.assert_allclose(np.array(dpo_loss(lead, beta=0.3)), np.array(bradley_terry_loss(0.3 * lead)), rtol=1e-6)


def test_only_a_smoothed_loss_turns_back_and_it_does_so_where_the_labels_share_of_errors_is_met() -> None:
    beta, smoothing = 0.5, 0.1
    best = math.log((1 - smoothing) / smoothing) / beta
    gradient = mx.grad(lambda x: dpo_loss(x, beta=beta, label_smoothing=smoothing).sum())
    below, at, beyond = np.array(gradient(mx.array([best - 0.5, best, best + 0.5])))
    assert below < -1e-3 < 1e-3 < beyond
    assert at == pytest.approx(0, abs=1e-6)
    assert float(mx.grad(lambda x: dpo_loss(x, beta=beta))(mx.array(best + 5))) < 0


def test_leads_that_are_far_off_give_a_finite_loss_and_gradient() -> None:
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
