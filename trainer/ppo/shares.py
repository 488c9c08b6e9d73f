"""Shares of a batch: each rank generates and scores its own sequences, and then has those of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from trainer.config.schema import RolloutConfig
from trainer.data import Prompt
from trainer.distributed.ranks import Ranks
from trainer.rollout.experience import Experience
from trainer.rollout.generation import Response, generate_responses


def respond(
    ranks: Ranks,
    backbone: nn.Module,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    rollout: RolloutConfig,
    *,
    key: mx.array,
    progress: Callable[[int, int], None],
) -> list[Response]:
    """Sample responses to `prompts`, a share of them on each rank, as `generate_responses` does."""
    share = None if ranks.alone else ranks.rows(len(prompts))

    def written() -> list[Response]:
        if share == []:
            return []
        return generate_responses(backbone, tokenizer, prompts, rollout, key=key, share=share, progress=progress)

    return [Response(*response) for part in ranks.together(written) for response in part]


def in_shares(ranks: Ranks, batch: Experience, compute: Callable[[Experience], Experience]) -> Experience:
    """Return `batch` with the fields that `compute` fills, computed for a share of the sequences on each rank.

    A batch of fewer sequences than ranks is computed whole on each.
    """
    if batch.size < ranks.size or ranks.alone:
        return compute(batch)
    rows = ranks.dealt(batch.lengths())
    with ranks.all_or_none():
        part = compute(batch.take(rows))
        found: dict[str, Any] = {
            name: value
            for name, before, value in zip(batch._fields, batch, part, strict=True)
            if before is None and value is not None
        }
        mx.eval(found)
    whole: Any = ranks.summed({name: spread(batch, value, rows) for name, value in found.items()})
    return batch._replace(**whole)


def spread(batch: Experience, part: mx.array, rows: Sequence[int]) -> mx.array:
    """Return numbers of some sequences in the layout of the batch, 0 in the others.

    part: [b, ...] or [b, t, ...] of `rows`; returns [B, ...] or [B, T, ...].
    """
    shape = (batch.size, *part.shape[1:])
    if part.ndim > 1:
        widths = [(0, 0), (0, batch.mask.shape[1] - part.shape[1]), *[(0, 0)] * (part.ndim - 2)]
        part, shape = mx.pad(part, widths), (batch.size, batch.mask.shape[1], *part.shape[2:])
    whole = mx.zeros(shape, dtype=part.dtype)
    return whole.at[mx.array(list(rows))].add(part)
