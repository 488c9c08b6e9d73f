"""Scoring of many sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from trainer.reward_model.batches import pad
from trainer.rollout.experience import micro_batch_rows

Scores = npt.NDArray[np.float64]


class Scorer(Protocol):
    """Anything that scores sequences of tokens in one pass."""

    def scores(self, sequences: mx.array, lengths: mx.array) -> mx.array:
        """Compute raw scores as `RewardModel.scores` does."""


def score_sequences(
    model: Scorer,
    sequences: Sequence[Sequence[int]],
    micro_batch_tokens: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Scores:
    """Compute the raw score of each sequence of tokens, reporting progress (done, total). Returns [N]."""
    scores, done = np.empty(len(sequences)), 0
    for rows in micro_batch_rows(range(len(sequences)), list(map(len, sequences)), micro_batch_tokens):
        part = [sequences[row] for row in rows]
        found = model.scores(mx.array(pad(part)), mx.array(list(map(len, part))))
        scores[rows] = np.array(found)  # evaluates, which frees this micro-batch's graph
        done += len(rows)
        progress(done, len(sequences))
    return scores
