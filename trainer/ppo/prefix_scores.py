"""Values from the score of the text so far, beside those of the critic's network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from trainer import maths
from trainer.arrays import filled, to_list
from trainer.data import Prompt
from trainer.reward_types import Reward, RewardInput
from trainer.rollout.experience import Experience
from trainer.rollout.token_texts import TokenTexts

FORGETTING = 0.5
"""Weight of a batch against the next one. Scores change fast while the policy learns, so old batches mislead."""
SHARE = 0.05  # of an iteration that the scores may take where the trainer chooses how far apart they are
SECONDS = 0.1  # that they may take in any case, so that the clock decides nothing in small runs
FEATURES = 5  # numbers of x

Floats = npt.NDArray[np.float64]


def add_prefix_scores(
    rewards: Reward, batch: Experience, prompts: Sequence[Prompt], token_texts: TokenTexts, *, every: int
) -> Experience:
    """Add Phi(s_t), the score of the response before token t, from which `PrefixValues` predicts the return.

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
    return batch._replace(prefix_scores=mx.array(prefixes), final_prefix_scores=mx.array(whole.astype(np.float32)))


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
        self.apart = 1
        """Tokens from one score to the next, where the trainer chooses."""

    def add(self, batch: Experience, every: int) -> Experience:
        """Add V_0 to the values of a batch with `prefix_scores`, which are of every so many tokens.

        The state after the last token has the score of the whole response.
        """
        phi, final = (np.array(filled(x), dtype=np.float64) for x in (batch.prefix_scores, batch.final_prefix_scores))
        weight, square = self._moments[0, 0], self._moments[1, 1]
        unit = square / weight if square > 0 else 1.0
        b = np.linalg.solve(self._moments + np.diag([1, unit, 1, unit, 1]), self._products)
        mask = np.array(batch.mask) > 0
        predicted = mx.array(np.where(mask, phi + self._before_tokens(phi, every) @ b, 0.0).astype(np.float32))
        after = self._features(final, np.array(batch.response_lengths), np.zeros_like(final))
        return batch._replace(
            prefix_values=predicted,
            values=filled(batch.values) + predicted,
            final_values=filled(batch.final_values) + mx.array((final + after @ b).astype(np.float32)),
        )

    def learn(self, batch: Experience, every: int, gamma: float, *, bootstrap_truncated: bool = False) -> None:
        """Learn from a batch with `prefix_scores` and `rewards`: its discounted rewards-to-go are the returns G.

        bootstrap_truncated: those of a truncated response go on with its value after the last token.
        """
        after = filled(batch.final_values) * batch.truncated if bootstrap_truncated else None
        zeros = mx.zeros_like(batch.mask)
        rewards = maths.td_errors(filled(batch.rewards), zeros, batch.mask, gamma=gamma, final_values=after)
        returns = np.array(maths.discounted_sums(rewards, batch.mask, gamma), dtype=np.float64)
        phi, mask = np.array(filled(batch.prefix_scores), dtype=np.float64), np.array(batch.mask) > 0
        x, rest = self._before_tokens(phi, every)[mask], (returns - phi)[mask]
        if np.isfinite(rest).all():
            self._moments = FORGETTING * self._moments + x.T @ x
            self._products = FORGETTING * self._products + x.T @ rest

    def spacing(self, taken: float, iteration: float) -> int:
        """Return how far apart the next scores are to be, if these took `taken` processor seconds of an `iteration`.

        It never falls, and checkpoints store it, so that a resumed run goes on with it.
        """
        allowed = max(SHARE * (iteration - taken), SECONDS)
        return self.apart * int(2 ** math.ceil(math.log2(max(taken / allowed, 1))))

    def state(self) -> dict[str, Any]:
        """Return what is learned and `apart` as plain values, which JSON keeps exactly."""
        return {"moments": self._moments.tolist(), "products": self._products.tolist(), "apart": self.apart}

    def restore(self, state: dict[str, Any] | None) -> None:
        """Restore what `state` returned, or with None the state of a new run."""
        state = state or PrefixValues(self.max_new_tokens).state()
        self._moments, self._products = np.array(state["moments"]), np.array(state["products"])
        self.apart = state["apart"]

    def _before_tokens(self, phi: Floats, every: int) -> Floats:
        """Return x_t for Phi [B, T]: [B, T, FEATURES]."""
        t = np.broadcast_to(np.arange(phi.shape[1]), phi.shape)
        return self._features(phi, t, t < every)

    def _features(self, phi: Floats, t: npt.NDArray[Any], unscored: npt.NDArray[Any]) -> Floats:
        place = t / self.max_new_tokens
        return np.stack([np.ones_like(phi), phi, place, phi * place, unscored], axis=-1)
