"""Arrays: to and from plain Python, the memory that MLX keeps of them, and random keys.

A random draw depends only on the seed, a purpose and numbers, so no state needs saving.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx.utils import tree_flatten


def to_list(array: mx.array) -> list[Any]:
    """Return the numbers of an array of one or more dimensions, as nested lists."""
    return cast("list[Any]", array.tolist())


def pad(sequences: Sequence[Sequence[float]], dtype: npt.DTypeLike = np.int32) -> npt.NDArray[Any]:
    """Return `sequences` as rows [N, L] of ids or other numbers, padded with 0 on the right."""
    rows = np.zeros((len(sequences), max(map(len, sequences), default=0)), dtype=dtype)
    for row, sequence in zip(rows, sequences, strict=True):
        row[: len(sequence)] = sequence
    return rows


def on_cpu() -> bool:
    """Return whether MLX computes on the CPU."""
    return mx.default_device() == mx.Device(mx.cpu)


def clear_cache() -> None:
    """Give the buffers that MLX keeps back to the device, on a GPU only where less than half of its memory is free.

    There, freeing and allocating again waits for the kernels under way; at its limit, MLX gives buffers back by itself.
    """
    held = mx.get_active_memory() + mx.get_cache_memory()
    if on_cpu() or held > mx.get_memory_limit() // 2:
        mx.clear_cache()


def leaves(tree: Any) -> list[mx.array]:
    """Return the arrays in a tree of dicts, lists and tuples."""
    return [cast("mx.array", pair[1]) for pair in tree_flatten(tree)]


def filled(value: mx.array | None) -> mx.array:
    """Return a record's field that an earlier step must have filled. Raises ValueError if it is None."""
    if value is None:
        raise ValueError("a step of the iteration was left out: its field of Experience is not filled")
    return value


class Purpose(IntEnum):
    """Purpose of a key. The numbers are part of what a seed means, so never change one."""

    ADAPTER = 1
    ROLLOUT = 2
    MINIBATCHES = 3
    EVALUATION = 4
    FOLDS = 5


def key_for(seed: int, purpose: Purpose, *numbers: int) -> mx.array:
    """Return the MLX random key of `purpose` in a run with `seed`; `numbers` are the iteration and the like."""
    state = np.random.SeedSequence([seed, purpose, *numbers]).generate_state(1, np.uint64)
    return mx.random.key(int(state[0]))


def prompt_indices(start: int, count: int, total: int, *, seed: int, shuffle: bool) -> list[int]:
    """Return positions (0 <= i < total) of the prompts number start .. start + count - 1 of an endless walk.

    The walk visits every prompt once per pass. Each pass has its own order, drawn from (seed, pass); without `shuffle`,
    it is always the order of the source. The walk needs no state, so a resumed run continues exactly where it was.
    Raises ValueError unless start, count >= 0 and total >= 1.
    """
    if start < 0 or count < 0 or total < 1:
        raise ValueError(f"start = {start}, count = {count} must be >= 0 and total = {total} >= 1")
    if not shuffle:
        return [number % total for number in range(start, start + count)]
    indices: list[int] = []
    while len(indices) < count:
        number, offset = divmod(start + len(indices), total)
        order = np.random.default_rng([seed, number]).permutation(total)
        indices += order[offset : offset + count - len(indices)].tolist()
    return indices
