"""Samples and checkpoints in a run's folder: written as it goes, the best kept; chosen for a rollback."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.config import Config
from trainer.engine.checkpoint import Snapshot, save_checkpoint
from trainer.engine.sample_rows import sample_rows, settings_of
from trainer.errors import StorageError, UsageError
from trainer.events import Evaluation, SamplePreview, SamplesWritten
from trainer.files import PRIVATE, SHARED
from trainer.ppo.loop import IterationResult
from trainer.rewards.weighted_sum import SMALLEST_DEVIATION, RunningMoments
from trainer.rollout.token_texts import TokenTexts
from trainer.runs.checkpoint_files import CheckpointWriter
from trainer.runs.checkpoint_index import (
    Best,
    best_checkpoint,
    checkpoints,
    iteration_of,
    prune_checkpoints,
    read_best,
    write_best,
)
from trainer.runs.folder import RunFolder
from trainer.runs.sample_index import update_index
from trainer.runs.samples import write_samples

PREVIEWS = 3


def save_if_new(writer: CheckpointWriter, snapshot: Snapshot) -> None:
    """Write `snapshot` as a checkpoint, unless the newest one is of the same iteration, and delete old ones."""
    writer.save(snapshot.iteration, lambda path: save_checkpoint(path, snapshot))


def keep_best(writer: CheckpointWriter, snapshot: Snapshot, evaluation: Evaluation, metric: str) -> None:
    """Save `snapshot`, which `evaluation` is of, if no earlier one was better by `metric`, a `checkpoint.best`.

    It stays until a better one comes. Calling this again changes nothing.
    """
    if metric == "off":
        return
    folder, score = writer.folder, evaluation.score_mean if metric == "score" else evaluation.reward_mean
    found = Best(snapshot.iteration, metric, _in_scale(score, snapshot.rewards), snapshot.rewards.get("sources"))
    if not math.isfinite(found.value):
        return
    best = read_best(folder) if best_checkpoint(folder) else None  # its checkpoint still exists
    if best and (best.metric, best.sources) == (found.metric, found.sources) and not found.value > best.value:
        return  # one of another metric or reward cannot be compared, and is replaced
    save_if_new(writer, snapshot)
    write_best(folder, found)
    prune_checkpoints(folder, writer.keep)  # the previous best may be an old one


def save_samples(
    folder: RunFolder, config: Config, result: IterationResult, token_texts: TokenTexts, *, trains_policy: bool
) -> SamplesWritten:
    """Write the sequences of an iteration if `run.save_samples` is set; return an event with the first few.

    token_texts: decodes their tokens; trains_policy: whether the iteration did.
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
        settings = settings_of(result.batch, config, kl_coef=kl_coef, trains_policy=trains_policy)
        write_samples(path, rows, number, settings, mode=SHARED if config.run.shared else PRIVATE)
        update_index(folder.samples, number)
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


def _in_scale(score: float, statistics: Mapping[str, Any]) -> float:
    """Return a mean score without the scaling of `reward.normalize = "running"`, so that scores are comparable."""
    moments = RunningMoments(*(statistics.get(name, 0) for name in ("count", "mean", "m2")))
    scale = moments.deviation if moments.deviation >= SMALLEST_DEVIATION else 1.0
    return score * scale + moments.mean


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


def forget_best(folder: RunFolder, iteration: int) -> None:
    """Delete best.json if it names the checkpoint after `iteration`, which is about to contain another state."""
    best = read_best(folder)
    if best is None or best.iteration != iteration:
        return
    try:
        folder.best.unlink()
    except OSError as error:
        raise StorageError(f"cannot delete '{folder.best}': {error.strerror}; fix the folder") from None
