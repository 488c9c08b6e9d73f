"""Groups as arrays: completions, and pairs of a preferred and a rejected one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

from trainer.reward_model.batches import pad
from trainer.reward_model.pairs import Group


class Completions(NamedTuple):
    """N sequences of up to L tokens, right-padded; their completions have up to T tokens."""

    sequences: mx.array  # [N, L] ids of prompt and completion
    prompt_lengths: mx.array  # [N]
    tokens: mx.array  # [N, T] ids of the completion
    mask: mx.array  # [N, T] 1.0 on real tokens of the completion; made from the lengths, never from ids


class PairBatch(NamedTuple):
    """P pairs of N completions."""

    completions: Completions
    better: mx.array  # [P] rows
    worse: mx.array  # [P] rows
    weights: mx.array  # [P] in the loss; those of a group sum to 1


def to_completions(sequences: Sequence[list[int]], counts: Sequence[int]) -> Completions:
    """Build arrays of `sequences`.

    counts: number of tokens of each completion, which are the last of its sequence.
    """
    starts = [len(tokens) - count for tokens, count in zip(sequences, counts, strict=True)]
    written = [tokens[start:] for tokens, start in zip(sequences, starts, strict=True)]
    width = max(1, *counts)
    return Completions(
        sequences=mx.array(pad(sequences)),
        prompt_lengths=mx.array(starts),
        tokens=mx.array(pad([*written, [0] * width])[:-1]),
        mask=(mx.arange(width)[None] < mx.array(list(counts))[:, None]).astype(mx.float32),
    )


def to_batch(groups: Sequence[Group]) -> PairBatch:
    """Build a batch of `groups`, none of them with ties. A ranking counts as its pairs."""
    sequences: list[list[int]] = []
    counts: list[int] = []
    better, worse, weights = [], [], []
    for group in groups:
        pairs = group.pairs
        better += [len(sequences) + pair.better for pair in pairs]
        worse += [len(sequences) + pair.worse for pair in pairs]
        # A group counts once, however many pairs it has (Ouyang et al. 2022, section 3.4).
        weights += [1 / len(pairs)] * len(pairs)
        sequences += group.sequences
        counts += group.completions
    return PairBatch(to_completions(sequences, counts), mx.array(better), mx.array(worse), mx.array(weights))
