"""Groups of comparisons as arrays, split into steps and into micro-batches of similar length."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from trainer.config.reward_model import RewardTrainConfig
from trainer.reward_model.pairs import Group, Pair, Ranking
from trainer.seeding import Purpose


class PairBatch(NamedTuple):
    """Groups of comparisons, right-padded: N sequences of up to L tokens, P pairs, R rankings of up to K."""

    sequences: mx.array  # [N, L] ids
    lengths: mx.array  # [N]
    better: mx.array  # [P] rows; for a tie, either one
    worse: mx.array  # [P] rows
    is_tie: mx.array  # [P]
    margins: mx.array  # [P] logits; 0 for a tie
    weights: mx.array  # [P] weights in the loss; those of a group's pairs and rankings sum to 1
    rankings: mx.array  # [R, K] rows
    ranks: mx.array  # [R, K] 0 is the best
    ranking_mask: mx.array  # [R, K]
    ranking_weights: mx.array  # [R]


def steps_in(groups: int, config: RewardTrainConfig) -> int:
    """Return the number of optimiser steps of the whole run over `groups` groups."""
    return config.epochs * math.ceil(groups / config.batch_size)


def step_groups(groups: Sequence[Group], number: int, config: RewardTrainConfig, seed: int) -> list[Group]:
    """Return the groups of step `number`, counted from 1.

    Each epoch visits all groups in its own order, which depends on `seed` and the epoch alone.
    """
    epoch, step = divmod(number - 1, math.ceil(len(groups) / config.batch_size))
    order = np.random.default_rng([seed, Purpose.MINIBATCHES, epoch]).permutation(len(groups))
    return [groups[place] for place in order[step * config.batch_size : (step + 1) * config.batch_size]]


def micro_batches(groups: Sequence[Group], budget: int) -> Iterator[list[Group]]:
    """Yield `groups` in parts of similar length whose padded tokens stay within `budget`; a larger group goes alone.

    The longest come first, so that memory peaks at the start.
    """
    part: list[Group] = []
    rows = 0
    for group in sorted(groups, key=lambda group: -group.longest):
        if part and part[0].longest * (rows + len(group.sequences)) > budget:
            yield part
            part, rows = [], 0
        part.append(group)
        rows += len(group.sequences)
    if part:
        yield part


def to_batch(groups: Sequence[Group], config: RewardTrainConfig) -> PairBatch:
    """Return `groups` as arrays."""
    sequences: list[list[int]] = []
    pairs: list[tuple[Pair, int, float]] = []  # pair, first row of its group, weight
    rankings: list[tuple[Ranking, int, float]] = []
    for group in groups:
        first = len(sequences)
        sequences += group.sequences
        choice = config.rankings == "plackett-luce"
        # A judgement goes into one loss. A group counts once, however many it has (Ouyang et al. 2022, section 3.4).
        terms = sum(1 if choice and ranking else len(found) for found, ranking in group.judged)
        for found, ranking in group.judged:
            as_ranking = choice and ranking is not None
            pairs += [(pair, first, 0.0 if as_ranking else 1 / terms) for pair in found]
            if as_ranking and ranking is not None:
                rankings.append((ranking, first, 1 / terms))
    widest = max((len(ranking.places) for ranking, _, _ in rankings), default=0)

    def padded(values: Sequence[int]) -> list[int]:
        return [*values, *[0] * (widest - len(values))]

    return PairBatch(
        sequences=mx.array(pad(sequences)),
        lengths=mx.array([len(sequence) for sequence in sequences]),
        better=mx.array([first + pair.better for pair, first, _ in pairs]),
        worse=mx.array([first + pair.worse for pair, first, _ in pairs]),
        is_tie=mx.array([pair.is_tie for pair, _, _ in pairs]),
        margins=mx.array([0.0 if pair.is_tie else config.margin * (pair.strength - 1) for pair, _, _ in pairs]),
        weights=mx.array([weight for _, _, weight in pairs]),
        rankings=mx.array([padded([first + place for place in one.places]) for one, first, _ in rankings]),
        ranks=mx.array([padded(one.ranks) for one, _, _ in rankings]),
        ranking_mask=mx.array([padded([1] * len(one.places)) for one, _, _ in rankings]),
        ranking_weights=mx.array([weight for _, _, weight in rankings]),
    )


def pad(sequences: Sequence[Sequence[int]]) -> npt.NDArray[np.int32]:
    """Return `sequences` as ids [N, L], padded with 0 on the right."""
    rows = np.zeros((len(sequences), max(map(len, sequences))), dtype=np.int32)
    for row, sequence in zip(rows, sequences, strict=True):
        row[: len(sequence)] = sequence
    return rows
