"""A critic without a network of its own: the return of a response by least squares from the reference's states."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt

from trainer.models.adapters import Parameters

WIDTH = 512
"""Numbers that are kept of a state, so that the moments take 4 MB whatever the model is."""
FORGETTING = 0.95
"""Weight of a batch against the next one. The reference's states do not change, but what they are worth does."""
ROUNDING = 1e-9
"""Share of a feature's mean square below which its variance is rounding."""

Floats = npt.NDArray[np.float64]


class FittedCritic:
    """Predict the return after each token from what the reference reads there.

        Phi(s_t) = c + w . x_t,   x_t = (mean of the states h_1 .. h_t, their sum)

    h_k is the state of the block half-way up after response token k, divided by its root mean square and projected to
    `WIDTH` numbers by fixed random signs. w and c minimise

        sum over sequences i of u_i / T_i sum_t (G_t - Phi(s_t))^2 + F sum_j var(x_j) w_j^2

    over all batches so far: ridge regression on F standardised features. A sequence counts once, however long it is
    (1 / T_i), and less with each batch that follows (u_i). Gradients did not find such a w in a few hundred sequences.
    This is exact after each batch, moves no adapter, and remembers no more as batches go by.
    """

    def __init__(self, hidden: int) -> None:
        self.width = min(WIDTH, hidden)
        signs = mx.random.bernoulli(shape=(hidden, self.width), key=mx.random.key(0)).astype(mx.float32)
        self._signs = (2 * signs - 1) / self.width**0.5
        self._size = 2 * self.width + 2  # of (1, x, G)
        self._moments = np.zeros((self._size, self._size))  # sum of u / T (1, x, G) (1, x, G)^T

    @property
    def batches(self) -> bool:
        """Return whether it has learned from any batch."""
        return bool(self._moments[0, 0])

    @property
    def outcome_scale(self) -> float:
        """Return the root mean square of the outcomes so far; 0 before the first."""
        return float(np.sqrt(self._moments[-1, -1] / (self._moments[0, 0] or 1)))

    def read(self, states: mx.array) -> mx.array:
        """Return h_1 + .. + h_t [B, T + 1, WIDTH] for states before each token and after the last one [B, T + 1, D].

        The first state is the prompt's, which is in no sum.
        """
        states = states.astype(mx.float32)
        unit = states * mx.rsqrt(mx.mean(mx.square(states), axis=-1, keepdims=True) + 1e-6)
        return mx.cumsum(mx.pad(unit[:, 1:] @ self._signs, [(0, 0), (1, 0), (0, 0)]), axis=1)

    def predict(self, sums: mx.array, counts: npt.NDArray[np.int64]) -> Floats:
        """Return Phi [B, N]. sums: [B, N, WIDTH]; counts: [B, N] tokens that each is of."""
        count = self._moments[0, 0]
        mean, squares = self._moments[0, 1:] / count, np.diag(self._moments)[1:-1] / count
        covariance = self._moments[1:, 1:] / count - np.outer(mean, mean)
        variances = np.maximum(np.diag(covariance)[:-1], ROUNDING * squares + np.finfo(np.float32).tiny)
        unit = np.sqrt(len(variances) * variances)  # in which each feature has a variance of 1 / F
        gram = covariance[:-1, :-1] / np.outer(unit, unit) + np.eye(len(unit)) / count
        w = np.linalg.solve(gram, covariance[:-1, -1] / unit) / unit
        return np.stack([mean[-1] + (_features(*row) - mean[:-1]) @ w for row in zip(sums, counts, strict=True)])

    def learn(self, sums: mx.array, outcomes: Floats, mask: npt.NDArray[np.bool_]) -> None:
        """Learn from a batch. sums: [B, T, WIDTH] before each token; outcomes, mask: [B, T]."""
        found = np.zeros_like(self._moments)
        for row, targets, real in zip(sums, outcomes, mask, strict=True):
            if real.any():
                x = _features(row, np.arange(len(real)))[real]
                rows = np.concatenate([np.ones((len(x), 1)), x, targets[real, None]], axis=1)
                if not np.isfinite(rows).all():  # a broken reward: of this batch it learns nothing
                    return
                found += rows.T @ rows / len(rows)
        self._moments = FORGETTING * self._moments + found

    def arrays(self) -> Parameters:
        """Return what is learned, to the bit: the upper triangle of the moments, in pairs of 32 bits."""
        upper = np.ascontiguousarray(self._moments[np.triu_indices(self._size)])
        return {"moments": mx.array(upper.view(np.uint32))}

    def restore(self, arrays: Parameters) -> None:
        """Restore what `arrays` returned."""
        upper = np.triu_indices(self._size)
        self._moments = np.zeros((self._size, self._size))
        self._moments[upper] = np.array(arrays["moments"]).view(np.float64)
        self._moments.T[upper] = self._moments[upper]


def _features(sums: mx.array, counts: npt.NDArray[np.int64]) -> Floats:
    """Return x [N, F] of sums [N, WIDTH] over `counts` [N] tokens."""
    total = np.array(sums, dtype=np.float64)
    return np.concatenate([total / np.maximum(counts, 1)[:, None], total], axis=1)


@contextmanager
def half_way(backbone: nn.Module) -> Iterator[list[Any]]:
    """Yield a list that gets what the block half-way up returns, in each pass inside the block of code.

    The block's class is replaced by a subclass meanwhile, so attributes, parameters and `isinstance` stay as they are.
    """
    blocks, seen = backbone.layers, list[Any]()
    block = blocks[len(blocks) // 2 - 1 if len(blocks) > 1 else 0]
    kind = type(block)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = kind.__call__(self, *args, **kwargs)
        seen.append(output[0] if isinstance(output, tuple) else output)
        return output

    try:
        block.__class__ = type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})
        yield seen
    finally:
        block.__class__ = kind
