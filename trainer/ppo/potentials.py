"""Values from what is known of a score before it comes: the score of the text so far, or what a fitted critic reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from trainer.arrays import filled, to_list
from trainer.data import Prompt
from trainer.models.fitted_critic import FittedCritic
from trainer.reward_types import Reward, RewardInput
from trainer.rollout.experience import Experience
from trainer.rollout.token_texts import TokenTexts

FORGETTING = {"score": 0.5, "fitted": 0.9}
"""Weight of a batch against the next one. Scores change fast while the policy learns, so old batches mislead."""
FEATURES = 5  # numbers of x

Floats = npt.NDArray[np.float64]


def add_prefix_scores(
    rewards: Reward, batch: Experience, prompts: Sequence[Prompt], token_texts: TokenTexts, *, every: int
) -> Experience:
    """Add Phi(s_t), the score of the response before token t, from which `PotentialValues` predicts the return.

    It is 0 before the first score: no source is asked for an empty response. After the last token it is the score from
    `compute_rewards`, without penalties.

    With values V(s_t) = Phi(s_t) + ..., the advantage of a token begins with what it did to the score. This is the same
    as shaping the rewards by the potential Phi, r_t + gamma Phi(s_{t+1}) - Phi(s_t) (Ng, Harada and Russell 1999; for
    values Wiewiora 2003, arXiv 1106.5267). It changes no optimal policy if lambda is 1, or if the values are exact.
    Else a token gains by raising the score for longer than 1 / (1 - gamma lambda) tokens, even if it is lost later.

    prompts: B, one per row; token_texts: splits a response into the texts that joined are what is scored; every: tokens
    from one score to the next, which holds in between. Raises RewardError.
    """
    rows = [ids[:count] for ids, count in zip(to_list(batch.responses), to_list(batch.response_lengths), strict=True)]
    inputs = []
    for prompt, ids in zip(prompts, rows, strict=True):
        texts = token_texts(ids)
        inputs += [
            RewardInput(prompt.prompt, "".join(texts[:t]), ids[:t], prompt.columns, truncated=True)
            for t in range(every, len(ids), every)
        ]
    scores = iter(rewards.so_far(inputs))
    prefixes = np.zeros(batch.mask.shape, dtype=np.float32)
    for row, ids in zip(prefixes, rows, strict=True):
        row[: len(ids)] = np.repeat([0.0, *(next(scores) for _ in range(every, len(ids), every))], every)[: len(ids)]
    penalties = rewards.penalties(np.array(batch.truncated), np.array(batch.response_lengths))
    whole = np.array(filled(batch.scores), dtype=np.float64) + penalties
    return batch._replace(potentials=mx.array(prefixes), final_potentials=mx.array(whole.astype(np.float32)))


def add_fitted_potentials(critic: FittedCritic, batch: Experience) -> Experience:
    """Add Phi(s_t), the return that a fitted critic expects before token t; values of 0 before its first batch."""
    if not critic.batches:
        zeros = mx.zeros_like(batch.mask)
        return batch._replace(values=zeros, final_values=zeros[:, 0])
    sums = mx.concatenate([filled(batch.fitted), filled(batch.final_fitted)[:, None]], axis=1)
    before = np.broadcast_to(np.arange(batch.mask.shape[1]), batch.mask.shape)
    counts = np.concatenate([before, np.array(batch.response_lengths)[:, None]], axis=1)
    phi = mx.array(critic.predict(sums, counts).astype(np.float32))
    return batch._replace(potentials=mx.where(batch.mask > 0, phi[:, :-1], 0.0), final_potentials=phi[:, -1])


class PotentialValues:
    """Prediction of a response's return from what is known before token t, Phi_t: the part of V(s_t) without a network.

        V_0(s_t) = Phi_t + b . x_t,   x_t = (1, Phi_t, t/T, Phi_t t/T, 1 where nothing is scored yet)

    Phi is 0 where nothing is scored yet. At first b is 0: the score stays as it is. Then b minimises the squared error
    of V_0 on the returns of all batches so far, each with less weight than the next one, plus |b|^2, where a
    coefficient of Phi counts in the root mean square of Phi, so that the unit of the rewards does not matter: least
    squares with forgetting. A Phi that says nothing of batches that it has not seen soon counts for nothing, so a bad
    one is no worse than the mean. A critic with a head learns what is left.
    """

    def __init__(self, max_new_tokens: int) -> None:
        self.max_new_tokens = max_new_tokens  # T
        self.known: Literal["score", "fitted"] = "score"
        """Source of Phi: the score of the text so far, or a fitted critic."""
        self._moments = np.zeros((FEATURES, FEATURES))  # sum of w x x^T
        self._products = np.zeros(FEATURES)  # sum of w x (G - Phi)

    def add(self, batch: Experience, every: int) -> Experience:
        """Add V_0 to the values of a batch, if it has `potentials`.

        every: tokens from one score to the next, which holds in between; 0: they come with every token, from the first.
        """
        if batch.potentials is None:
            return batch
        phi, final = (np.array(filled(x), dtype=np.float64) for x in (batch.potentials, batch.final_potentials))
        weight, square = self._moments[0, 0], self._moments[1, 1]
        unit = square / weight if square > 0 else 1.0
        b = np.linalg.solve(self._moments + np.diag([1, unit, 1, unit, 1]), self._products)
        mask = np.array(batch.mask) > 0
        predicted = mx.array(np.where(mask, phi + self._before_tokens(phi, every) @ b, 0.0).astype(np.float32))
        after = self._features(final, np.array(batch.response_lengths), np.zeros_like(final))
        last = mx.array((final + after @ b).astype(np.float32))
        return batch._replace(
            base_values=predicted,
            values=predicted if batch.values is None else batch.values + predicted,
            final_values=last if batch.final_values is None else batch.final_values + last,
        )

    def learn(self, batch: Experience, every: int, outcomes: Floats) -> None:
        """Learn from a batch, if it has `potentials`. outcomes: [B, T]."""
        if batch.potentials is None:
            return
        phi, mask = np.array(filled(batch.potentials), dtype=np.float64), np.array(batch.mask) > 0
        x, rest = self._before_tokens(phi, every)[mask], (outcomes - phi)[mask]
        if np.isfinite(rest).all():
            weight = FORGETTING[self.known]
            self._moments = weight * self._moments + x.T @ x
            self._products = weight * self._products + x.T @ rest

    def state(self) -> dict[str, Any]:
        """Return what is learned, and of which Phi, as plain values, which JSON keeps exactly."""
        return {"known": self.known, "moments": self._moments.tolist(), "products": self._products.tolist()}

    def restore(self, state: dict[str, Any] | None) -> None:
        """Restore what `state` returned, or with None or a state of another Phi that of a new run."""
        if state is None or state.get("known", "score") != self.known:
            state = PotentialValues(self.max_new_tokens).state()
        self._moments, self._products = np.array(state["moments"]), np.array(state["products"])

    def _before_tokens(self, phi: Floats, every: int) -> Floats:
        """Return x_t for Phi [B, T]: [B, T, FEATURES]."""
        t = np.broadcast_to(np.arange(phi.shape[1]), phi.shape)
        return self._features(phi, t, t < every)

    def _features(self, phi: Floats, t: npt.NDArray[Any], unscored: npt.NDArray[Any]) -> Floats:
        place = t / self.max_new_tokens
        return np.stack([np.ones_like(phi), phi, place, phi * place, unscored], axis=-1)
