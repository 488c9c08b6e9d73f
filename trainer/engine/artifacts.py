"""Samples and checkpoints in a run's folder: written as it goes, the best kept; chosen for a rollback."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from trainer.arrays import filled, to_list
from trainer.config import Config
from trainer.data import Prompt
from trainer.errors import UsageError
from trainer.events import Evaluation, SamplePreview, SamplesWritten
from trainer.files import PRIVATE, SHARED
from trainer.policy_checkpoint import Snapshot, save_checkpoint
from trainer.ppo.learner import has_signal
from trainer.ppo.loop import IterationResult
from trainer.ppo.steps import adjust_rewards_with_kl
from trainer.reward_types import RewardResult
from trainer.rewards.weighted_sum import SMALLEST_DEVIATION, RunningMoments
from trainer.rollout.experience import Experience
from trainer.rollout.token_texts import TokenTexts
from trainer.runs.checkpoint_files import (
    Best,
    CheckpointWriter,
    best_checkpoint,
    checkpoints,
    iteration_of,
    prune_checkpoints,
    read_best,
    write_best,
)
from trainer.runs.folder import RunFolder
from trainer.runs.samples import TOKEN_COLUMNS, SampleSettings, write_samples

PREVIEWS = 3
_TRAINED = ("token_scores", "rewards", "values", "td_errors", "advantages", "returns", "ratios")
_SETTINGS = (  # of [ppo]
    *("kl_estimator", "gamma", "lam", "clip", "epochs", "whiten_rewards", "whiten_advantages", "estimator", "kl_in"),
    *("clip_high", "dual_clip", "loss_aggregation", "group_std", "importance_cap", "policy_loss", "ratio"),
)
TOP_COLUMNS = ("top_tokens", "top_logprobs", "top_ref_logprobs")


def keep_best(writer: CheckpointWriter, snapshot: Snapshot, evaluation: Evaluation, metric: str) -> None:
    """Save `snapshot`, which `evaluation` is of, if no earlier one was better by `metric`, a `checkpoint.best`.

    It stays until a better one comes. Calling this again changes nothing.
    """
    if metric == "off":
        return
    folder, score = writer.folder, evaluation.score_mean if metric == "score" else evaluation.reward_mean
    # Without the scaling of reward.normalize = "running", so that scores are comparable:
    moments = RunningMoments(*(snapshot.rewards.get(name, 0) for name in ("count", "mean", "m2")))
    scale = moments.deviation if moments.deviation >= SMALLEST_DEVIATION else 1.0
    found = Best(snapshot.iteration, metric, score * scale + moments.mean, snapshot.rewards.get("sources"))
    if not math.isfinite(found.value):
        return
    best = read_best(folder) if best_checkpoint(folder) else None  # its checkpoint still exists
    if best and (best.metric, best.sources) == (found.metric, found.sources) and not found.value > best.value:
        return  # one of another metric or reward cannot be compared, and is replaced
    writer.save(snapshot.iteration, lambda path: save_checkpoint(path, snapshot))
    write_best(folder, found)
    prune_checkpoints(folder, writer.keep)  # the previous best may be an old one


def save_samples(folder: RunFolder, config: Config, result: IterationResult, token_texts: TokenTexts) -> SamplesWritten:
    """Write the sequences of an iteration if `run.save_samples` is set; return an event with the first few.

    token_texts: decodes their tokens.
    """
    number = result.metrics.iteration
    saves = config.run.save_samples
    rows = sample_rows(
        result.batch,
        result.prompts,
        result.rewards,
        config.rollout.samples_per_prompt,
        token_texts=token_texts if saves else None,
        ratios=result.ratios,
    )
    path = folder.samples_file(number)
    if saves:
        kl_coef = result.metrics.kl_coef
        settings = settings_of(result.batch, config, kl_coef=kl_coef, trains_policy=result.trains_policy)
        write_samples(path, rows, number, settings, mode=SHARED if config.run.shared else PRIVATE)
    previews = [
        SamplePreview(
            prompt=row["prompt"],
            completion=row["completion"],
            score=math.nan if row["score"] is None else row["score"],
            kl=row["kl_sum"],
            truncated=row["truncated"],
        )
        for row in rows[:PREVIEWS]
    ]
    where = str(path.relative_to(folder.root)) if saves else ""
    return SamplesWritten(iteration=number, path=where, rows=len(rows), previews=previews)


def older_checkpoint(folder: RunFolder, to: int | None, *, before: int) -> Path:
    """Return the checkpoint after iteration `to`, which must be earlier than `before`.

    None: the best, or else the oldest kept. Raises UsageError if there is none.
    """
    older = {number: path for path in checkpoints(folder).paths if (number := iteration_of(path)) < before}
    if not older:
        raise UsageError(
            f"no checkpoint from before iteration {before} is kept: raise checkpoint.keep, or set eval.every and "
            "checkpoint.best"
        )
    if to is None:
        best = best_checkpoint(folder)
        return best if best and best in older.values() else older[min(older)]
    if to not in older:
        raise UsageError(f"no checkpoint of iteration {to} to roll back to; choose from {', '.join(map(str, older))}")
    return older[to]


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
    as_json = functools.partial(
        json.dumps, ensure_ascii=False, default=lambda value: getattr(value, "tolist", value.__str__)()
    )
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
            "columns": as_json(prompt.columns),
            "extra": as_json({name: found[row] for name, found in rewards.extra.items()}) if rewards.extra else None,
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
        **{name: getattr(ppo, name) for name in _SETTINGS},
        kl_coef=kl_coef,
        temperature=config.rollout.temperature,
        bootstrap_truncated=ppo.bootstraps,
        reward_mean=reward_mean,
        reward_std=reward_std,
        advantage_mean=advantage_mean,
        advantage_std=advantage_std,
        samples_per_prompt=config.rollout.samples_per_prompt,
        trains_policy=trains_policy,
        has_signal=has_signal(batch),
    )


def _known(x: mx.array) -> list[float | None]:
    return [None if math.isnan(value) else value for value in to_list(x)]


def _moments(x: mx.array, mask: mx.array) -> tuple[float, float]:
    """Return the mean and standard deviation over the real tokens."""
    real = np.array(x, dtype=np.float64)[np.array(mask) > 0]
    return (float(real.mean()), float(real.std())) if real.size else (0.0, 0.0)
