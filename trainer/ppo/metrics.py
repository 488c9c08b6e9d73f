"""Metrics of one iteration, computed from its batch and its optimiser steps."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from trainer import maths
from trainer.arrays import filled, to_list
from trainer.config import Config
from trainer.data import Prompt
from trainer.ppo.learner import StepMetrics
from trainer.ppo.steps import adjust_rewards_with_kl
from trainer.rewards import RewardResult
from trainer.rollout.experience import Experience
from trainer.rollout.token_texts import TokenTexts
from trainer.runs.samples import TOKEN_COLUMNS, SampleSettings

_TRAINED = ("token_scores", "rewards", "values", "td_errors", "advantages", "returns", "ratios")
TOP_COLUMNS = ("top_tokens", "top_logprobs", "top_ref_logprobs")


def rollout_metrics(batch: Experience, *, kl_coef: float) -> dict[str, Any]:
    """Return the fields of the `iteration` event that depend on the batch alone.

    They are means over sequences or real tokens. kl is the mean over sequences of the summed k1, whatever estimator the
    penalty uses. Numbers of scores, values, returns and advantages are of the sequences that have a score.
    """
    mask = (mx.arange(batch.mask.shape[1])[None] < batch.response_lengths[:, None]).astype(mx.float32)
    scores = np.array(filled(batch.scores) + _sums(filled(batch.token_scores), mask), dtype=np.float64)
    scored = ~np.isnan(scores)
    known = scores[scored] if scored.any() else np.array([math.nan])

    def mean(x: mx.array) -> float:
        return float(maths.masked_mean(x, batch.mask)) if scored.any() else math.nan

    k1 = maths.kl_estimate(filled(batch.logprobs), filled(batch.ref_logprobs), "k1")
    kl = np.array(_sums(k1, mask), dtype=np.float64)
    penalty = kl_coef * np.array(_sums(filled(batch.kl), mask), dtype=np.float64)
    mismatch = mx.abs(batch.sampler_logprobs - filled(batch.logprobs))
    returns, values = filled(batch.returns), batch.values
    explained = math.nan if values is None else float(maths.explained_variance(values, returns, batch.mask))
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
        "explained_variance": explained,
        "value_mean": math.nan if values is None else mean(values),
        "return_mean": mean(returns),
        "advantage_std": math.sqrt(float(maths.masked_variance(filled(batch.advantages), batch.mask))),
        "response_length": float(batch.response_lengths.mean()),
        "truncated": float(batch.truncated.mean()),
        "sampler_mismatch": float(maths.masked_mean(mismatch, mask)),
        "length_correlation": correlation(known, np.array(batch.response_lengths, dtype=np.float64)[scored]),
        "repetition": float(np.mean([repetition(response) for response in responses])),
        "unique": len(set(map(tuple, responses))) / len(responses),
        **surprise_metrics(batch.sampler_logprobs, filled(batch.entropy), mask),
    }


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


def correlation(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> float:
    """Return Pearson's correlation of two series of one length; NaN if one of them does not vary."""
    if not (np.std(x) > 0 and np.std(y) > 0):
        return math.nan
    return float(np.corrcoef(x, y)[0, 1])


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
    taken = [step for step in steps if step.taken]
    skipped = [step for step in steps if step.outcome in ("not_finite", "ratio_spike")]

    def mean(name: str) -> float:
        return sum(getattr(step, name) for step in taken) / len(taken) if taken else math.nan

    names = ("policy_loss", "value_loss", "clip_fraction", "approx_kl", "ratio_mean", "grad_norm")
    return {
        **{name: mean(name) for name in names},
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


def sample_rows(
    batch: Experience,
    prompts: Sequence[Prompt],
    rewards: RewardResult,
    samples_per_prompt: int,
    *,
    token_texts: TokenTexts | None = None,
    ratios: npt.NDArray[np.float32] | None = None,
) -> list[dict[str, Any]]:
    """Return one dict per sequence for the samples file: texts, ids, scores, and per-token arrays cut to its length.

    A sequence that is left out has no numbers of what it would be trained on, and without a score no score.
    token_texts: of the tokenizer, for the columns of texts; ratios: [B, T, passes]. Arguments that are None and fields
    that the batch lacks get no column.
    """
    # Without a critic there are no values and no TD errors.
    names = (*TOKEN_COLUMNS, *TOP_COLUMNS)
    arrays = {name: np.array(value) for name in names if (value := getattr(batch, name)) is not None}
    if ratios is not None:
        arrays["ratios"] = ratios
    trained = to_list(mx.any(batch.mask > 0, axis=1))
    scores = _known(filled(batch.scores) + _sums(filled(batch.token_scores), batch.mask))
    sequence_scores = _known(filled(batch.scores))
    by_sequence = {
        name: _known(value)
        for name, value in (
            ("final_value", batch.final_values),
            ("baseline", batch.baselines),
            ("advantage_scale", batch.advantage_scales),
        )
        if value is not None
    }
    responses, lengths, truncated = np.array(batch.responses), to_list(batch.response_lengths), to_list(batch.truncated)
    rows = []
    for row, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        left_out = () if trained[row] else _TRAINED
        per_token = {name: array[row, :length] for name, array in arrays.items() if name not in left_out}
        k1 = per_token["logprobs"].astype(np.float64) - per_token["ref_logprobs"]
        values = {
            "row": row,
            "prompt_index": prompt.index,
            "sample": row % samples_per_prompt,
            "prompt": prompt.text,
            "source_prompt": None if prompt.prompt == prompt.text else json.dumps(prompt.prompt, ensure_ascii=False),
            "completion": batch.texts[row],
            "truncated": bool(truncated[row]),
            "stop_reason": "length" if truncated[row] else "stop",
            "score": scores[row],
            "sequence_score": sequence_scores[row],
            "parts": {name: None if math.isnan(part[row]) else part[row] for name, part in rewards.parts.items()},
            "columns": _json(prompt.columns),
            "extra": _json({name: found[row] for name, found in rewards.extra.items()}) if rewards.extra else None,
            "length": length,
            "kl_sum": float(k1.sum()),
            **{name: value[row] if trained[row] else None for name, value in by_sequence.items()},
            "prompt_tokens": prompt.tokens,
            "tokens": responses[row, :length],
            **per_token,
        }
        if token_texts is not None:
            values["token_texts"] = token_texts(values["tokens"].tolist())
            if "top_tokens" in arrays:
                values["top_texts"] = token_texts.pieces(values["top_tokens"])
        rows.append(values)
    return rows


def settings_of(
    batch: Experience, config: Config, *, kl_coef: float, trains_policy: bool = True, has_signal: bool = True
) -> SampleSettings:
    """Return the settings that determine the numbers of the batch's tokens.

    config: the one that the batch was made with; kl_coef: used in the iteration, in the rewards or the loss;
    trains_policy: false while the critic alone learns; has_signal: see `trainer.ppo.learner.has_signal`.
    """
    ppo = config.ppo
    kl_in_rewards = kl_coef if ppo.kl_in == "reward" else 0.0
    plain = adjust_rewards_with_kl(batch, kl_coef=kl_in_rewards, bootstrap_truncated=ppo.bootstraps)
    reward_mean, reward_std = _moments(filled(plain.rewards), batch.mask)
    advantage_mean, advantage_std = _moments(filled(batch.advantages), batch.mask)
    return SampleSettings(
        kl_coef=kl_coef,
        kl_estimator=ppo.kl_estimator,
        gamma=ppo.gamma,
        lam=ppo.lam,
        clip=ppo.clip,
        temperature=config.rollout.temperature,
        epochs=ppo.epochs,
        bootstrap_truncated=ppo.bootstraps,
        whiten_rewards=ppo.whiten_rewards,
        whiten_advantages=ppo.whiten_advantages,
        reward_mean=reward_mean,
        reward_std=reward_std,
        advantage_mean=advantage_mean,
        advantage_std=advantage_std,
        estimator=ppo.estimator,
        kl_in=ppo.kl_in,
        clip_high=ppo.clip_high,
        dual_clip=ppo.dual_clip,
        loss_aggregation=ppo.loss_aggregation,
        group_std=ppo.group_std,
        samples_per_prompt=config.rollout.samples_per_prompt,
        importance_cap=ppo.importance_cap,
        trains_policy=trains_policy,
        has_signal=has_signal,
    )


def _json(values: dict[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, default=lambda value: getattr(value, "tolist", value.__str__)())


def _known(x: mx.array) -> list[float | None]:
    return [None if math.isnan(value) else value for value in to_list(x)]


def _sums(x: mx.array, mask: mx.array) -> mx.array:
    return mx.where(mask > 0, x, 0.0).sum(axis=1)


def _moments(x: mx.array, mask: mx.array) -> tuple[float, float]:
    """Return the mean and standard deviation over the real tokens."""
    real = np.array(x, dtype=np.float64)[np.array(mask) > 0]
    return (float(real.mean()), float(real.std())) if real.size else (0.0, 0.0)
