"""Values of states from the score of what is written so far."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from trainer import maths
from trainer.arrays import filled
from trainer.rollout.experience import Experience

FORGETTING = 0.5
"""Weight of a batch against the next one. Scores change fast while the policy learns, so old batches mislead."""


FEATURES = 5  # numbers of x


class PrefixValues:
    """Prediction of a response's return from its score before token t, Phi_t: the part of V(s_t) that needs no network.

        V_0(s_t) = Phi_t + b . x_t,   x_t = (1, Phi_t, t/T, Phi_t t/T, 1 where nothing is scored yet)

    Phi is 0 where nothing is scored yet. At first b is 0: the score stays as it is. Then b minimises the squared error
    of V_0 on the returns of all batches so far, each with half the weight of the next one, plus |b|^2, where a
    coefficient of Phi counts in the root mean square of Phi, so that the unit of the rewards does not matter: least
    squares with forgetting. The critic's head learns what is left.
    """

    def __init__(self, max_new_tokens: int) -> None:
        self.max_new_tokens = max_new_tokens  # T
        self._moments = np.zeros((FEATURES, FEATURES))  # sum of w x x^T
        self._products = np.zeros(FEATURES)  # sum of w x (G - Phi)

    def add(self, batch: Experience, every: int) -> Experience:
        """Add V_0 to the values of a batch with `prefix_scores`, which are of every so many tokens."""
        phi = np.array(filled(batch.prefix_scores), dtype=np.float64)
        weight, square = self._moments[0, 0], self._moments[1, 1]
        unit = square / weight if square > 0 else 1.0
        b = np.linalg.solve(self._moments + np.diag([1, unit, 1, unit, 1]), self._products)
        mask = np.array(batch.mask) > 0
        predicted = mx.array(np.where(mask, phi + self._features(phi, every) @ b, 0.0).astype(np.float32))
        return batch._replace(prefix_values=predicted, values=filled(batch.values) + predicted)

    def learn(self, batch: Experience, every: int, gamma: float) -> None:
        """Learn from a batch with `prefix_scores` and `rewards`: its discounted rewards-to-go are the returns G."""
        returns = np.array(maths.discounted_sums(filled(batch.rewards), batch.mask, gamma), dtype=np.float64)
        phi, mask = np.array(filled(batch.prefix_scores), dtype=np.float64), np.array(batch.mask) > 0
        x, rest = self._features(phi, every)[mask], (returns - phi)[mask]
        if np.isfinite(rest).all():
            self._moments = FORGETTING * self._moments + x.T @ x
            self._products = FORGETTING * self._products + x.T @ rest

    def state(self) -> dict[str, Any]:
        """Return what is learned as plain values, which JSON keeps exactly."""
        return {"moments": self._moments.tolist(), "products": self._products.tolist()}

    def restore(self, state: dict[str, Any] | None) -> None:
        """Restore what `state` returned, or with None the state of a new run."""
        state = state or PrefixValues(self.max_new_tokens).state()
        self._moments, self._products = np.array(state["moments"]), np.array(state["products"])

    def _features(self, phi: npt.NDArray[np.float64], every: int) -> npt.NDArray[np.float64]:
        """Return x_t for Phi [B, T]: [B, T, FEATURES]."""
        t = np.broadcast_to(np.arange(phi.shape[1]), phi.shape)
        place = t / self.max_new_tokens
        return np.stack([np.ones_like(phi), phi, place, phi * place, t < every], axis=-1)
