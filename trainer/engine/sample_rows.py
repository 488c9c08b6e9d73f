"""Rows of a samples file, from the batch of an iteration, and the settings that its numbers follow from."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from trainer.arrays import filled, to_list
from trainer.config import Config
from trainer.data import Prompt
from trainer.ppo.learner import has_signal
from trainer.ppo.steps import adjust_rewards_with_kl
from trainer.reward_types import RewardResult
from trainer.rollout.experience import Experience
from trainer.rollout.token_texts import TokenTexts
from trainer.runs.samples import TOKEN_COLUMNS, SampleSettings

_TRAINED = ("token_scores", "rewards", "values", "td_errors", "advantages", "returns", "ratios")
TOP_COLUMNS = ("top_tokens", "top_logprobs", "top_ref_logprobs")


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
    scores = _known(filled(batch.scores) + mx.where(batch.mask > 0, filled(batch.token_scores), 0.0).sum(axis=1))
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


def settings_of(batch: Experience, config: Config, *, kl_coef: float, trains_policy: bool = True) -> SampleSettings:
    """Return the settings that determine the numbers of the batch's tokens.

    config: the one that the batch was made with; kl_coef: used in the iteration, in the rewards or the loss;
    trains_policy: false while the critic alone learns.
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
        has_signal=has_signal(batch),
    )


def _json(values: dict[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, default=lambda value: getattr(value, "tolist", value.__str__)())


def _known(x: mx.array) -> list[float | None]:
    return [None if math.isnan(value) else value for value in to_list(x)]


def _moments(x: mx.array, mask: mx.array) -> tuple[float, float]:
    """Return the mean and standard deviation over the real tokens."""
    real = np.array(x, dtype=np.float64)[np.array(mask) > 0]
    return (float(real.mean()), float(real.std())) if real.size else (0.0, 0.0)
