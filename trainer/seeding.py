"""Explicit random keys: a draw depends only on the seed, a purpose and numbers, so no state needs saving."""

from __future__ import annotations

from enum import IntEnum

import mlx.core as mx
import numpy as np


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
