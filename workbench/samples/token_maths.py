"""The numbers of a token recomputed in float64, from the saved numbers in their definitions.

The trainer computes in float32, so every result has a tolerance: how far rounding may move the saved number from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from trainer.runs.samples import SampleSettings
from workbench.run.sample_table import TokenSample

_EPSILON = 2.0**-23  # relative distance of neighbours in float32
_ROUNDING = 32 * _EPSILON  # relative to the sum of the absolute terms
_WHITENING = 1e-8  # added to the variance, as in `trainer.maths.whiten`


LARGEST_LOG_R = 2.610868638149876
"""Bound on log r in k3, as in `trainer.maths.kl_estimate`."""


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
        case "k1" | "full":
            value, slope = -log_r, 1.0
        case "k2":
            value, slope = 0.5 * log_r * log_r, abs(log_r)
        case "k3":
            log_rho = min(log_r, LARGEST_LOG_R)
            value, slope = math.expm1(log_rho) - log_rho, exp(log_rho) + 1
        case "abs":
            value, slope = abs(log_r), 1.0
        case _:
            return Recomputed()
    # The rounding of the log-probs' difference reaches the result multiplied by the slope.
    return Recomputed(value, _ROUNDING * (slope * (abs(logprob) + abs(ref_logprob)) + abs(value)))


def kl_loss(logprob: float, ref_logprob: float | None, settings: SampleSettings) -> float | None:
    """Return the KL of a token in the loss, as `trainer.maths.kl_loss` does; None for the exact KL of all tokens."""
    if settings.kl_estimator == "full":
        return None
    value = kl(logprob, ref_logprob, settings).value
    if value is None or ref_logprob is None or settings.kl_estimator != "k3":
        return value
    return value + math.expm1(LARGEST_LOG_R) * max(ref_logprob - logprob - LARGEST_LOG_R, 0.0)


def kl_slope(logprob: float | None, ref_logprob: float | None, settings: SampleSettings | None) -> float | None:
    """Return d KL_t / d log pi for the estimators that are allowed in a loss, None for others."""
    if logprob is None or ref_logprob is None or settings is None:
        return None
    match settings.kl_estimator:
        case "k2":
            return logprob - ref_logprob
        case "k3":
            return 1 - exp(min(ref_logprob - logprob, LARGEST_LOG_R))
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


def discounted_sum(numbers: Sequence[float], factor: float) -> Recomputed:
    """Return sum_l factor^l x_l, unknown without numbers."""
    if not numbers:
        return Recomputed()
    total = size = drift = 0.0  # drift: the error of a power in float32 grows with l
    for x in reversed(numbers):
        drift = factor * (drift + size)
        total = x + factor * total
        size = abs(x) + factor * size
    return Recomputed(total, _ROUNDING * size + _EPSILON * drift)


def advantage_over_baseline(earned: Recomputed, baseline: float | None, scale: float | None) -> Recomputed:
    """Return A_t = (earned - b) / s.

    earned: G_t, or R where the response is one action. scale: s, which is 1 for all estimators but grpo.
    """
    if earned.value is None or baseline is None or not scale:
        return Recomputed()
    rounding = _ROUNDING * (abs(earned.value) + abs(baseline))
    return Recomputed((earned.value - baseline) / scale, (earned.tolerance + rounding) / abs(scale))


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


class AdvantageTerm(NamedTuple):
    """One term: weight * x."""

    token: int  # index in the response of the token whose TD error or reward it is
    weight: float
    x: float
    product: float
    running: float  # the sum up to here


def advantage_sum(sample: TokenSample, index: int) -> tuple[Sequence[float], float]:
    """Return the numbers that the advantage of token `index` sums, up to those of the last token, and their discount.

    The sum is sum_l (gamma lambda)^l delta_{t+l} with GAE, and G_t = sum_l gamma^l r_{t+l} with reinforce and remax.
    Where the response is one action it is R = sum_t r_t, over all rewards whatever the token. There are no numbers
    without settings.
    """
    settings = sample.settings
    if settings is None:
        return (), 1.0
    if settings.estimator == "gae":
        return sample.numbers.get("td_errors", ())[index:], settings.gamma * settings.lam
    rewards = sample.numbers.get("rewards", ())
    return (rewards, 1.0) if settings.estimator in PER_RESPONSE else (rewards[index:], settings.gamma)


def advantage_terms(sample: TokenSample, index: int) -> list[AdvantageTerm]:
    """Return the terms of `advantage_sum` for token `index`, nearest first."""
    numbers, factor = advantage_sum(sample, index)
    running, terms = 0.0, list[AdvantageTerm]()
    for token, x in enumerate(numbers, len(sample) - len(numbers)):
        weight = _power(factor, len(terms))
        product = weight * x
        running += product
        terms.append(AdvantageTerm(token, weight, x, product, running))
    return terms


class TokenLoss(NamedTuple):
    """L = -w max(min(rho A, clip(rho) A), c A) + beta KL_t; a term that the run does not use is None."""

    unclipped: float  # rho A
    clipped: float  # clip(rho) A
    bound: float | None  # c A of the dual clip, where A is negative
    weight: float | None  # w, the importance weight pi_old / pi_sampler, capped
    kl: float | None  # beta KL_t under the policy of that pass, where the KL is in the loss

    @property
    def total(self) -> float:
        """The loss L."""
        kept = min(self.unclipped, self.clipped)
        kept = kept if self.bound is None else max(kept, self.bound)
        return -kept * (1.0 if self.weight is None else self.weight) + (self.kl or 0.0)


class UpdatePass(NamedTuple):
    """A token in one pass over the batch."""

    name: str  # "epoch 1" and so on, "after" for the pass after the last; "pass 1" where the epochs are not known
    ratio: float  # pi / pi_old; NaN where the token was part of no step in the epoch
    probability: float | None  # under the policy of that pass
    in_loss: bool  # the token was part of an optimiser step
    skipped: bool  # an epoch in which the token was part of no step
    outside: bool  # the ratio is outside its range
    clipped: bool  # by `is_clipped`
    loss: TokenLoss | None  # None without a step, or where a term is not known

    @property
    def mark(self) -> str:
        """A label for the clip's effect; empty where the ratio is inside its range."""
        return "no step" if self.skipped else "✂ clipped" if self.clipped else "outside" if self.outside else ""


def ratio_range(settings: SampleSettings) -> tuple[float, float]:
    """Return the bounds between which a ratio is not clipped."""
    return 1 - settings.clip, 1 + (settings.clip_high or settings.clip)


def is_clipped(ratio: float, advantage: float, settings: SampleSettings) -> bool:
    """Return whether the loss of a token has no gradient, because of the ratio's range or the dual clip."""
    low, high = ratio_range(settings)
    by_dual_clip = advantage < 0 < settings.dual_clip < ratio
    return by_dual_clip or (ratio > high and advantage > 0) or (ratio < low and advantage < 0)


def deviation(std: float) -> float:
    """Return the divisor of whitening, sqrt(std^2 + 1e-8)."""
    return math.sqrt(std * std + _WHITENING)


def exp(x: float) -> float:
    """Return e to the x, infinity where that exceeds a float."""
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _power(base: float, exponent: int) -> float:
    """Return `base` to the `exponent`, infinity where that exceeds a float."""
    try:
        return base**exponent
    except OverflowError:
        return math.inf
