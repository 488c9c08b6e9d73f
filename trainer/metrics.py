"""From a batch and its optimiser steps to the numbers of one iteration."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from trainer import maths
from trainer.arrays import filled, to_list
from trainer.data import Prompt
from trainer.experience import Experience
from trainer.learner import StepMetrics


def rollout_metrics(batch: Experience, *, kl_coef: float) -> dict[str, Any]:
    """Fields of the `iteration` event that the batch alone decides; means over sequences or real tokens.

    kl is the mean over sequences of the summed k1, whatever estimator the penalty uses.
    """
    mask = batch.mask
    scores = np.array(filled(batch.scores) + _sums(filled(batch.token_scores), mask), dtype=np.float64)
    k1 = maths.kl_estimate(filled(batch.logprobs), filled(batch.ref_logprobs), "k1")
    kl = np.array(_sums(k1, mask), dtype=np.float64)
    penalty = kl_coef * np.array(_sums(filled(batch.kl), mask), dtype=np.float64)
    mismatch = mx.abs(batch.sampler_logprobs - filled(batch.logprobs))
    return {
        "score_mean": float(scores.mean()),
        "score_std": float(scores.std()),
        "score_max": float(scores.max()),
        "score_min": float(scores.min()),
        "reward_mean": float((scores - penalty).mean()),
        "kl": float(kl.mean()),
        "entropy": float(maths.masked_mean(filled(batch.entropy), mask)),
        "explained_variance": float(maths.explained_variance(filled(batch.values), filled(batch.returns), mask)),
        "value_mean": float(maths.masked_mean(filled(batch.values), mask)),
        "return_mean": float(maths.masked_mean(filled(batch.returns), mask)),
        "response_length": float(batch.response_lengths.mean()),
        "truncated": float(batch.truncated.mean()),
        "sampler_mismatch": float(maths.masked_mean(mismatch, mask)),
    }


def update_metrics(steps: Sequence[StepMetrics]) -> dict[str, Any]:
    """Fields of the `iteration` event that the optimiser steps decide: means over the steps that were computed.

    NaN where there was no step at all; a skipped step counts in `skipped_steps` and in no mean.
    """
    taken = [step for step in steps if step.taken]

    def mean(name: str) -> float:
        return sum(getattr(step, name) for step in taken) / len(taken) if taken else math.nan

    names = ("policy_loss", "value_loss", "clip_fraction", "approx_kl", "ratio_mean", "grad_norm")
    return {
        **{name: mean(name) for name in names},
        "ratio_max": max((step.ratio_max for step in taken), default=math.nan),
        "steps": len(taken),
        "skipped_steps": len(steps) - len(taken),
    }


def sample_rows(
    batch: Experience, prompts: Sequence[Prompt], parts: dict[str, list[float]], samples_per_prompt: int
) -> list[dict[str, Any]]:
    """One dict a sequence for the samples file: texts, ids, scores, and every per-token array cut to its length."""
    per_token = {
        "sampler_logprobs": batch.sampler_logprobs,
        "logprobs": batch.logprobs,
        "ref_logprobs": batch.ref_logprobs,
        "kl": batch.kl,
        "entropy": batch.entropy,
        "rewards": batch.rewards,
        "values": batch.values,
        "td_errors": batch.td_errors,
        "advantages": batch.advantages,
        "returns": batch.returns,
    }
    arrays = {name: np.array(filled(array)) for name, array in per_token.items()}
    scores = to_list(filled(batch.scores) + _sums(filled(batch.token_scores), batch.mask))
    responses, lengths, truncated = (
        to_list(batch.responses),
        to_list(batch.response_lengths),
        to_list(batch.truncated),
    )
    return [
        {
            "row": row,
            "prompt_index": prompt.index,
            "sample": row % samples_per_prompt,
            "prompt": prompt.text,
            "completion": batch.texts[row],
            "truncated": bool(truncated[row]),
            "stop_reason": "length" if truncated[row] else "stop",
            "score": scores[row],
            "parts": {name: values[row] for name, values in parts.items()},
            "columns": json.dumps(prompt.columns, ensure_ascii=False, default=str),
            "prompt_tokens": prompt.tokens,
            "tokens": responses[row][: lengths[row]],
            **{name: array[row, : lengths[row]].tolist() for name, array in arrays.items()},
        }
        for row, prompt in enumerate(prompts)
    ]


def _sums(x: mx.array, mask: mx.array) -> mx.array:
    return mx.where(mask > 0, x, 0.0).sum(axis=1)
