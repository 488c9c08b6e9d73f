"""Experience of one rollout: a record of arrays, and its split into minibatches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from trainer.arrays import to_list


class Experience(NamedTuple):
    """B sequences of a rollout, right-padded: L tokens of prompt and response together, T response tokens.

    Each step of `steps.py` returns the record with its own fields filled; before that they are None.
    """

    # lay_out
    sequences: mx.array  # [B, L] ids of prompt and response, then padding
    responses: mx.array  # [B, T] ids of the response, then padding
    prompt_lengths: mx.array  # [B] tokens
    response_lengths: mx.array  # [B] tokens, including the stop token
    mask: mx.array  # [B, T] 1.0 on real response tokens; computed from lengths, never from ids; from the rewards on 0
    # for sequences that are left out
    truncated: mx.array  # [B] 1.0 if the response was cut at max_new_tokens
    sampler_logprobs: mx.array  # [B, T] as computed while sampling
    texts: list[str]  # B responses as text, without the stop
    prompt_indices: list[int]  # B indices into the prompt list
    # add_policy_logprobs_and_values
    logprobs: mx.array | None = None  # [B, T] old policy, teacher-forced
    entropy: mx.array | None = None  # [B, T] nats, of the full distribution
    values: mx.array | None = None  # [B, T] V(s_t), s_t the state before token t
    final_values: mx.array | None = None  # [B] V of the state after the last token
    top_tokens: mx.array | None = None  # [B, T, K] ids of the policy's likeliest tokens, likeliest first; None if off
    top_logprobs: mx.array | None = None  # [B, T, K] old policy
    # add_kl_to_sa_pairs
    ref_logprobs: mx.array | None = None  # [B, T]
    fitted: mx.array | None = None  # [B, T, WIDTH] what a fitted critic reads before token t; None with another critic
    final_fitted: mx.array | None = None  # [B, WIDTH] after the last token
    top_ref_logprobs: mx.array | None = None  # [B, T, K] reference, of `top_tokens`
    kl: mx.array | None = None  # [B, T] by the penalty's estimator
    # compute_rewards, adjust_rewards_with_kl
    scores: mx.array | None = None  # [B] one per sequence, added to the last token; NaN if no source applies
    token_scores: mx.array | None = None  # [B, T] rewards of single tokens; zeros if there are none
    rewards: mx.array | None = None  # [B, T]
    # add_prefix_scores or add_fitted_values, PotentialValues.add
    potentials: mx.array | None = None  # [B, T] what is known of the score before token t; None if off, as the next two
    final_potentials: mx.array | None = None  # [B] after the last token
    base_values: mx.array | None = None  # [B, T] what they predict, which is part of V(s_t) or all of it
    # compute_td_errors, compute_gae_advantages, add_reward_to_go
    td_errors: mx.array | None = None  # [B, T]
    # or, without a critic, one of `estimators.py`
    advantages: mx.array | None = None  # [B, T] from the estimator, not whitened
    returns: mx.array | None = None  # [B, T]
    outcomes: mx.array | None = None  # [B, T] rewards-to-go without any values of a critic
    baselines: mx.array | None = None  # [B] subtracted from the returns; None with a critic
    advantage_scales: mx.array | None = None  # [B] divisors of the advantages; None if not divided

    @property
    def size(self) -> int:
        """Number of sequences, B."""
        return int(self.sequences.shape[0])

    def lengths(self) -> list[int]:
        """Return the length of each sequence, prompt and response together, in tokens."""
        return to_list(self.prompt_lengths + self.response_lengths)

    def take(self, rows: Sequence[int]) -> Experience:
        """Return the sequences of `rows`, in that order, cut to the longest of them."""
        index = mx.array(list(rows))
        length = int((self.prompt_lengths + self.response_lengths)[index].max())
        width = max(int(self.response_lengths[index].max()), 1)

        fields: dict[str, Any] = self._asdict()
        for name, value in fields.items():
            if isinstance(value, list):
                fields[name] = [value[row] for row in rows]
            elif isinstance(value, mx.array):
                cut = value[index]
                columns = length if name == "sequences" else width
                fields[name] = cut if value.ndim == 1 or name.startswith("final_") else cut[:, :columns]
        return Experience(**fields)

    def gathered(self, parts: Sequence[mx.array], order: Sequence[int], *, extra: int = 0) -> mx.array:
        """Join results of parts of the batch in the layout of the batch: [B, T + extra, ...], 0 in the padding.

        parts: [b, t + extra, ...], one for each `take`; order: the rows of all parts, one after the other.
        """
        width = self.mask.shape[1] + extra
        rows = mx.concatenate(
            [mx.pad(part, [(0, 0), (0, width - part.shape[1]), *[(0, 0)] * (part.ndim - 2)]) for part in parts]
        )
        rows = rows[mx.array(sorted(range(len(order)), key=order.__getitem__))]
        mask = self.mask if not extra else mx.pad(self.mask, [(0, 0), (extra, 0)], constant_values=1.0)
        return mx.where(mask.reshape(*mask.shape, *[1] * (rows.ndim - 2)) > 0, rows, mx.zeros_like(rows))

    def spread(self, name: str, part: mx.array, rows: Sequence[int]) -> mx.array:
        """Return the field `name` of some `rows` in the layout of the batch, 0 in the others.

        part: [b], [b, t, ...], or [b, ...] of the state after the last token; returns the same with B and T.
        """
        if part.ndim > 1 and not name.startswith("final_"):
            widths = [(0, 0), (0, self.mask.shape[1] - part.shape[1]), *[(0, 0)] * (part.ndim - 2)]
            part = mx.pad(part, widths)
        whole = mx.zeros((self.size, *part.shape[1:]), dtype=part.dtype)
        return whole.at[mx.array(list(rows))].add(part)
