"""The numbers of a token recomputed in float64, each from the saved numbers in its definition.

The trainer computes in float32, so every result has a tolerance: how far rounding may move the saved number from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from trainer.runs.samples import SampleSettings

_EPSILON = 2.0**-23  # relative distance of neighbours in float32
_ROUNDING = 32 * _EPSILON  # relative to the sum of the absolute terms
_WHITENING = 1e-8  # added to the variance, as in `trainer.maths.whiten`


class Recomputed(NamedTuple):
    """A number, None where one of its inputs is missing, and how far the float32 result may be from it."""

    value: float | None = None
    tolerance: float = 0.0

    def agrees(self, saved: float | None) -> bool:
        """Return whether rounding explains the difference to `saved`, or there is nothing to compare."""
        if saved is None or self.value is None or saved == self.value or (math.isnan(saved) and math.isnan(self.value)):
            return True
        return abs(saved - self.value) <= self.tolerance < math.inf


PER_RESPONSE = ("rloo", "grpo")
"""Estimators that take a response as one action: all its tokens have the same advantage."""


def kl(logprob: float | None, ref_logprob: float | None, settings: SampleSettings | None) -> Recomputed:
    """Return the KL of a token by the penalty's estimator, as `trainer.maths.kl_estimate` does."""
    if logprob is None or ref_logprob is None or settings is None:
        return Recomputed()
    log_r = ref_logprob - logprob
    match settings.kl_estimator:
        case "k1":
            value, slope = -log_r, 1.0
        case "k2":
            value, slope = 0.5 * log_r * log_r, abs(log_r)
        case "k3":
            value = (math.expm1(log_r) if log_r < 1 else exp(log_r) - 1) - log_r
            slope = exp(log_r) + 1
        case "abs":
            value, slope = abs(log_r), 1.0
        case _:
            return Recomputed()
    # The rounding of the log-probs' difference reaches the result multiplied by the slope.
    return Recomputed(value, _ROUNDING * (slope * (abs(logprob) + abs(ref_logprob)) + abs(value)))


def kl_slope(logprob: float | None, ref_logprob: float | None, settings: SampleSettings | None) -> float | None:
    """Return d KL_t / d log pi for the estimators that are allowed in a loss, None for others."""
    if logprob is None or ref_logprob is None or settings is None:
        return None
    match settings.kl_estimator:
        case "k2":
            return logprob - ref_logprob
        case "k3":
            return 1 - exp(ref_logprob - logprob)
        case _:
            return None


def reward(parts: Sequence[float | None], settings: SampleSettings | None) -> Recomputed:
    """Return r_t, the sum of its parts; whitened, but with the mean kept, where the run whitens rewards."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or settings is None:
        return Recomputed()
    raw, size = sum(known), sum(abs(part) for part in known)
    if not settings.whiten_rewards:
        return Recomputed(raw, _ROUNDING * size)
    mean, scale = settings.reward_mean, deviation(settings.reward_std)
    return Recomputed((raw - mean) / scale + mean, _ROUNDING * ((size + abs(mean)) / scale + abs(mean)))


def td_error(
    reward: float | None, value: float | None, next_value: float | None, settings: SampleSettings | None
) -> Recomputed:
    """Return delta_t = r_t + gamma V(s_{t+1}) - V(s_t)."""
    if reward is None or value is None or next_value is None or settings is None:
        return Recomputed()
    following = settings.gamma * next_value
    return Recomputed(reward + following - value, _ROUNDING * (abs(reward) + abs(following) + abs(value)))


def gae_advantage(td_errors: Sequence[float], settings: SampleSettings | None) -> Recomputed:
    """Return A_t = sum_l (gamma lambda)^l delta_{t+l}. td_errors: of the token and all after it."""
    return Recomputed() if settings is None else _discounted(td_errors, settings.gamma * settings.lam)


def reward_to_go(rewards: Sequence[float], settings: SampleSettings | None) -> Recomputed:
    """Return G_t = sum_l gamma^l r_{t+l}. rewards: of the token and all after it.

    Estimators that take a response as one action do not discount.
    """
    if settings is None:
        return Recomputed()
    return _discounted(rewards, 1.0 if settings.estimator in PER_RESPONSE else settings.gamma)


def total_reward(rewards: Sequence[float]) -> Recomputed:
    """Return R = sum_t r_t. rewards: of the whole response."""
    return _discounted(rewards, 1.0)


def advantage_over_baseline(
    earned: Recomputed, baseline: float | None, scale: float | None, settings: SampleSettings | None
) -> Recomputed:
    """Return A_t = (earned - b) / s, where s is 1 for all estimators but grpo.

    earned: G_t, or R where the response is one action.
    """
    if settings is None or earned.value is None or baseline is None:
        return Recomputed()
    if settings.estimator == "grpo" and not scale:
        return Recomputed()
    divisor = scale if settings.estimator == "grpo" and scale else 1.0
    rounding = _ROUNDING * (abs(earned.value) + abs(baseline))
    return Recomputed((earned.value - baseline) / divisor, (earned.tolerance + rounding) / abs(divisor))


def whitened_advantage(advantage: float | None, settings: SampleSettings | None) -> float | None:
    """Return (A_t - mean) / sqrt(std^2 + 1e-8), None where the run does not whiten advantages."""
    if advantage is None or settings is None or not settings.whiten_advantages:
        return None
    return (advantage - settings.advantage_mean) / deviation(settings.advantage_std)


def return_(advantage: float | None, value: float | None) -> Recomputed:
    """Return G_t = A_t + V(s_t)."""
    if advantage is None or value is None:
        return Recomputed()
    return Recomputed(advantage + value, _ROUNDING * (abs(advantage) + abs(value)))


def importance_weight(
    logprob: float | None, sampler_logprob: float | None, settings: SampleSettings | None
) -> float | None:
    """Return min(pi_old / pi_sampler, cap), None where the run uses no importance weights."""
    if logprob is None or sampler_logprob is None or settings is None or not settings.importance_cap:
        return None
    return min(exp(logprob - sampler_logprob), settings.importance_cap)


def deviation(std: float) -> float:
    """Return the divisor of whitening, sqrt(std^2 + 1e-8)."""
    return math.sqrt(std * std + _WHITENING)


def exp(x: float) -> float:
    """Return e to the x, infinity where that exceeds a float."""
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def power(base: float, exponent: int) -> float:
    """Return `base` to the `exponent`, infinity where that exceeds a float."""
    try:
        return base**exponent
    except OverflowError:
        return math.inf


def _discounted(values: Sequence[float], factor: float) -> Recomputed:
    """Return sum_l factor^l x_l."""
    if not values:
        return Recomputed()
    total = size = drift = 0.0  # drift: the error of a power in float32 grows with l
    for value in reversed(values):
        drift = factor * (drift + size)
        total = value + factor * total
        size = abs(value) + factor * size
    return Recomputed(total, _ROUNDING * size + _EPSILON * drift)
