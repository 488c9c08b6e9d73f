"""Network of a reward model: a LoRA adapter and a scalar head on a frozen backbone that others may use too."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt

from trainer.arrays import pad
from trainer.config.reward_model import RewardModelConfig
from trainer.fitting.micro_batches import micro_batch_rows
from trainer.models.adapters import (
    ADAPTER,
    Parameters,
    linear_places,
    lora_parameters,
    new_adapter,
    only_adapter,
    update_lora,
)
from trainer.models.classifier import ScalarHead
from trainer.models.trunk import check_family, hidden_size, hidden_states

Scores = npt.NDArray[np.float64]


class Scale(NamedTuple):
    """Mean and deviation of the raw scores on reference samples.

    logit_std: the divisor that turns a difference of raw scores into the log-odds that the model is trained on.
    """

    mean: float
    std: float
    logit_std: float


class RewardModel:
    """Reward r(sequence) = w . h + b, with h the hidden state of the sequence's last real token.

    Its LoRA layers are in the backbone only inside `on`, so a policy on the same weights keeps its own. head: of the
    sequence classifier that the backbone comes from, to begin with.
    """

    def __init__(
        self, backbone: nn.Module, config: RewardModelConfig, *, key: mx.array, head: ScalarHead | None = None
    ) -> None:
        adapter_key, head_key = mx.random.split(key)
        self.backbone = backbone
        check_family(backbone)
        self.scale = Scale(mean=0.0, std=1.0, logit_std=1.0)
        self._places = linear_places(backbone)
        self._adapter, self.adapter_config = new_adapter(backbone, config.model, adapter_key)
        width = hidden_size(backbone)
        # Variance 1/(d + 1), bias 0: Stiennon et al. 2020, "Learning to summarize", appendix B.1.
        self._head = {
            "head.weight": mx.random.normal((width,), key=head_key) / math.sqrt(width + 1),
            "head.bias": mx.zeros(()),
        }
        if head is not None:
            self._head = {"head.weight": head.weight / head.std, "head.bias": mx.array(-head.mean / head.std)}
        backbone.eval()
        mx.eval(backbone.state, self.parameters())

    def on(self) -> AbstractContextManager[None]:
        """Put only this adapter into the backbone inside the block; restore the old ones afterwards."""
        return only_adapter(self._places, self._adapter)

    def scores(self, sequences: mx.array, lengths: mx.array) -> mx.array:
        """Compute raw scores [N], or [N, K] of K beginnings of each sequence.

        sequences: [N, L] ids, padded on the right with any ids; lengths: [N] or [N, K], at least 1.
        """
        return self.states(sequences, lengths) @ self._head["head.weight"] + self._head["head.bias"]

    def states(self, sequences: mx.array, lengths: mx.array) -> mx.array:
        """Compute what the head reads, in float32: [N, D] or [N, K, D]. Arguments as for `scores`."""
        with self.on():
            hidden = hidden_states(self.backbone, sequences)  # [N, L, D]
        return states_at(hidden, lengths).astype(mx.float32)

    def replace_head(self, weight: npt.NDArray[np.float64]) -> None:
        """Use the head `weight` [D], which gives log-odds, without a bias; the divisor of the scores stays."""
        scaled = mx.array((self.scale.logit_std * weight).astype(np.float32))
        self._head |= {"head.weight": scaled, "head.bias": mx.zeros(())}

    def allow_ties(self, share: float) -> None:
        """Allow ties: train `tie.log_nu` too.

        Its start makes the probability of a tie `share` for completions of equal reward.
        """
        self._head["tie.log_nu"] = mx.array(math.log(2 * share / (1 - share)))

    @property
    def log_nu(self) -> mx.array | None:
        """Parameter of `maths.davidson_logprobs`; None if the model allows no ties."""
        return self._head.get("tie.log_nu")

    def parameters(self) -> Parameters:
        """Return all trained arrays by name.

        These are `adapter.` and the full name of each LoRA array, `head.weight` [D], `head.bias`, and `tie.log_nu` if
        the model allows ties.
        """
        return lora_parameters(self._adapter, ADAPTER) | self._head

    def update(self, parameters: Parameters) -> None:
        """Replace all trained arrays with `parameters`."""
        update_lora(self._adapter, parameters, ADAPTER)
        self._head = {name: array for name, array in parameters.items() if not name.startswith(ADAPTER)}


def states_at(hidden: mx.array, lengths: mx.array) -> mx.array:
    """Return the last states of sequences, or of beginnings of them. hidden: [N, L, D]; lengths: [N] or [N, K]."""
    ends = (lengths - 1).reshape(lengths.shape[0], -1)[..., None]
    return mx.take_along_axis(hidden, ends, axis=1).reshape(*lengths.shape, -1)


def score_sequences(
    score: Callable[[mx.array, mx.array], mx.array],
    sequences: Sequence[Sequence[int]],
    micro_batch_tokens: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Scores:
    """Compute the raw score of each sequence of tokens, reporting progress (done, total). Returns [N].

    Sequences that another one begins with are read in its pass: a state knows nothing of the tokens after it. score:
    scores a micro-batch, as `RewardModel.scores` does, or reads its states, as `RewardModel.states` does: [N, D] then.
    """
    scores, read = np.empty(0), _with_beginnings(sequences)
    lengths = [len(sequences[members[-1]]) for members in read]
    for rows in micro_batch_rows(lengths, micro_batch_tokens, progress=progress):
        part = mx.array(pad([sequences[read[row][-1]] for row in rows]))
        ends = pad([[len(sequences[member]) for member in read[row]] for row in rows])
        ends = np.maximum(ends, 1)  # some have fewer beginnings than others: any place will do there
        found = np.array(score(part, mx.array(ends)))  # frees this part's graph
        scores = scores if scores.size else np.empty((len(sequences), *found.shape[2:]))
        for row, of_row in zip(rows, found, strict=True):
            scores[read[row]] = of_row[: len(read[row])]
    return scores


def _with_beginnings(sequences: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return groups of rows: one that no other row goes on from, at the end, after those that it begins with."""
    groups: list[list[int]] = []
    for row in sorted(range(len(sequences)), key=lambda row: list(sequences[row])):
        last = list(sequences[groups[-1][-1]]) if groups else None
        if last is not None and last == list(sequences[row][: len(last)]):
            groups[-1].append(row)
        else:
            groups.append([row])
    return sorted(groups, key=lambda group: group[-1])
