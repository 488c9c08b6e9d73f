"""Metrics of one iteration, computed from its batch and its optimiser steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from trainer import maths
from trainer.arrays import filled, to_list
from trainer.ppo.learner import StepMetrics
from trainer.rollout.experience import Experience

BUCKETS = 5  # of a calibration


def rollout_metrics(batch: Experience, *, kl_coef: float) -> dict[str, Any]:
    """Return the fields of the `iteration` event that depend on the batch alone.

    They are means over sequences or real tokens. kl is the mean over sequences of the summed k1, whatever estimator the
    penalty uses. Numbers of scores, values, returns and advantages are of the sequences that have a score.
    """
    mask = (mx.arange(batch.mask.shape[1])[None] < batch.response_lengths[:, None]).astype(mx.float32)
    k1 = maths.kl_estimate(filled(batch.logprobs), filled(batch.ref_logprobs), "k1")
    by_token = (filled(batch.token_scores), k1, filled(batch.kl))
    token_scores, k1_sums, kl_sums = (mx.where(mask > 0, x, 0.0).sum(axis=1) for x in by_token)
    scores = np.array(filled(batch.scores) + token_scores, dtype=np.float64)
    scored = ~np.isnan(scores)
    known = scores[scored] if scored.any() else np.array([math.nan])
    kl, penalty = np.array(k1_sums, dtype=np.float64), kl_coef * np.array(kl_sums, dtype=np.float64)
    mismatch = mx.abs(batch.sampler_logprobs - filled(batch.logprobs))
    returns, values, outcomes = filled(batch.returns), batch.values, batch.outcomes
    critic: dict[str, Any] = {"explained_variance": math.nan}
    if values is not None and outcomes is not None:  # GAE's returns hold the critic's own values
        critic["explained_variance"] = float(maths.explained_variance(values, outcomes, batch.mask))
        critic["calibration"] = calibration(values, outcomes, batch.mask)
    value_mean, return_mean = (
        float(maths.masked_mean(x, batch.mask)) if x is not None and scored.any() else math.nan
        for x in (values, returns)
    )
    lengths = np.array(batch.response_lengths, dtype=np.float64)[scored]
    varies = np.std(known) > 0 and np.std(lengths) > 0
    rows = zip(to_list(batch.responses), to_list(batch.response_lengths), strict=True)
    responses = [ids[:length] for ids, length in rows]
    return {
        "score_mean": float(known.mean()),
        "score_std": float(known.std()),
        "score_max": float(known.max()),
        "score_min": float(known.min()),
        "unscored": 1 - float(scored.mean()),
        "reward_mean": maths.mean_of_known(scores - penalty),
        "kl": float(kl.mean()),
        "kl_std": float(kl.std()),
        "entropy": float(maths.masked_mean(filled(batch.entropy), mask)),
        **critic,
        "value_mean": value_mean,
        "return_mean": return_mean,
        "advantage_std": math.sqrt(float(maths.masked_variance(filled(batch.advantages), batch.mask))),
        "response_length": float(batch.response_lengths.mean()),
        "truncated": float(batch.truncated.mean()),
        "sampler_mismatch": float(maths.masked_mean(mismatch, mask)),
        "length_correlation": float(np.corrcoef(known, lengths)[0, 1]) if varies else math.nan,
        "repetition": float(np.mean([repetition(response) for response in responses])),
        "unique": len(set(map(tuple, responses))) / len(responses),
        **surprise_metrics(batch.sampler_logprobs, filled(batch.entropy), mask),
    }


def calibration(values: mx.array, outcomes: mx.array, mask: mx.array) -> list[list[float]]:
    """Return mean value, mean outcome and number of tokens of each fifth of a batch's tokens, by value. [B, T] each."""
    real = np.array(mask) > 0
    predicted, came = (np.array(x, dtype=np.float64)[real] for x in (values, outcomes))
    parts = np.array_split(np.argsort(predicted, kind="stable"), BUCKETS)
    return [[float(predicted[part].mean()), float(came[part].mean()), float(len(part))] for part in parts if len(part)]


def surprise_metrics(sampler_logprobs: mx.array, entropy: mx.array, mask: mx.array) -> dict[str, float]:
    """Return the mean surprise of the sampled tokens, and the standard error of its distance from the mean entropy.

    A token a_t drawn from p has the mean surprise E[-log p(a_t)] = H(p), whatever came before it. The differences

        d_t = -log p(a_t) - H(p)

    are therefore those of a martingale, and their mean over N tokens is 0 with a standard error of sqrt(sum d_t^2) / N.
    Cutting the distribution (top-p, top-k) lowers the surprise. All arguments: [B, T].
    """
    surprise, tokens = -sampler_logprobs, mask.sum()
    squares = mx.where(mask > 0, mx.square(surprise - entropy), 0.0).sum()
    return {
        "surprise": float(maths.masked_mean(surprise, mask)),
        "surprise_error": float(mx.sqrt(squares) / tokens),
    }


def repetition(tokens: Sequence[int]) -> float:
    """Return the share of a response's 4-grams that occurred in it before; 0 if all differ or there are none."""
    grams = list(zip(*(tokens[start:] for start in range(4)), strict=False))
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def update_metrics(steps: Sequence[StepMetrics], *, minibatches: int = 1) -> dict[str, Any]:
    """Return the fields of the `iteration` event that depend on the optimiser steps.

    They are means over the steps taken, NaN if there are none. A skipped step counts in `skipped_steps` and in no mean.
    A step that was not taken because the policy had moved far enough (`ppo.target_approx_kl`) counts in neither.
    minibatches: per epoch.
    """
    taken = [step for step in steps if step.outcome == "taken"]
    skipped = [step for step in steps if step.outcome in ("not_finite", "ratio_spike")]
    names = ("policy_loss", "value_loss", "clip_fraction", "approx_kl", "ratio_mean", "grad_norm")
    return {
        **{name: sum(getattr(step, name) for step in taken) / len(taken) if taken else math.nan for name in names},
        "ratio_max": max((step.ratio_max for step in taken), default=math.nan),
        # Over all computed steps: it shows why a step was skipped.
        "log_ratio_max": max((step.log_ratio_max for step in steps), default=math.nan),
        "grad_norm_max": max((step.grad_norm for step in taken), default=math.nan),
        "steps": len(taken),
        "skipped_steps": len(skipped),
        "spiked_steps": sum(step.outcome == "ratio_spike" for step in steps),
        "critic_share": next((step.critic_share for step in steps if math.isfinite(step.critic_share)), math.nan),
        "epochs_done": (len(taken) + len(skipped)) / minibatches,
    }
