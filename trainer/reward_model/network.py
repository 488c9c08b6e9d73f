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
from trainer.config.pairs import RewardModelConfig
from trainer.fitting.optimisation import micro_batch_rows
from trainer.models.adapters import (
    ADAPTER,
    Parameters,
    linear_places,
    lora_parameters,
    new_adapter,
    only_adapter,
    update_lora,
)
from trainer.models.backbone import ScalarHead
from trainer.models.forward import check_family, hidden_states

Scores = npt.NDArray[np.float64]
Read = Callable[[mx.array, mx.array, mx.array], mx.array]  # sequences, lengths and starts to scores or states
LAST, MEAN = "head.weight", "head.mean_weight"  # of the state of the last token, of the mean


class Scale(NamedTuple):
    """Mean and deviation of the raw scores on reference samples.

    logit_std: the divisor that turns a difference of raw scores into the log-odds that the model is trained on.
    """

    mean: float
    std: float
    logit_std: float


class RewardModel:
    """Reward r(sequence) = w . h + b, with h the hidden state of the sequence's last real token.

    With `train.states = "last+mean"` it is w . h + u . m + b, with m the mean of the states of the completion's tokens.
    Its LoRA layers are in the backbone only inside `on`, so a policy on the same weights keeps its own. head: of the
    sequence classifier that the backbone comes from, to begin with. tie_share: if not 0, the model allows ties; their
    probability for completions of equal reward is this at the start.
    """

    def __init__(
        self,
        backbone: nn.Module,
        config: RewardModelConfig,
        *,
        key: mx.array,
        head: ScalarHead | None = None,
        tie_share: float = 0.0,
    ) -> None:
        adapter_key, head_key = mx.random.split(key)
        self.backbone = backbone
        check_family(backbone)
        self.scale = Scale(mean=0.0, std=1.0, logit_std=1.0)
        self._places = linear_places(backbone)
        self._adapter, self.adapter_config = new_adapter(backbone, config.model, adapter_key)
        width = hidden_states(backbone, mx.array([[0]])).shape[-1]
        # Variance 1/(d + 1), bias 0: Stiennon et al. 2020, "Learning to summarize", appendix B.1.
        self._head = {
            "head.weight": mx.random.normal((width,), key=head_key) / math.sqrt(width + 1),
            "head.bias": mx.zeros(()),
        }
        self.reads_mean = config.train.states == "last+mean"
        self.weights = (LAST, MEAN) if self.reads_mean else (LAST,)  # one for each state that the head reads
        if head is not None:
            self._head = {"head.weight": head.weight / head.std, "head.bias": mx.array(-head.mean / head.std)}
        if self.reads_mean:
            self._head[MEAN] = mx.zeros((width,))
        if tie_share:
            self._head["tie.log_nu"] = mx.array(math.log(2 * tie_share / (1 - tie_share)))
        backbone.eval()
        mx.eval(backbone.state, self.parameters())

    def on(self) -> AbstractContextManager[None]:
        """Put only this adapter into the backbone inside the block; restore the old ones afterwards."""
        return only_adapter(self._places, self._adapter)

    def scores(self, sequences: mx.array, lengths: mx.array, starts: mx.array | None = None) -> mx.array:
        """Compute raw scores [N], or [N, K] of K beginnings of each sequence.

        sequences: [N, L] ids, padded on the right with any ids; lengths: [N] or [N, K], at least 1; starts: of the same
        shape, places where completions begin, below the lengths. None: the whole sequences are completions.
        """
        weight = mx.concatenate([self._head[name] for name in self.weights])
        return self.states(sequences, lengths, starts) @ weight + self._head["head.bias"]

    def states(self, sequences: mx.array, lengths: mx.array, starts: mx.array | None = None) -> mx.array:
        """Compute what the head reads, in float32: `parts` states beside each other, [N, P D] or [N, K, P D].

        Arguments as for `scores`.
        """
        with self.on():
            hidden = hidden_states(self.backbone, sequences)  # [N, L, D]
        last = states_at(hidden, lengths).astype(mx.float32)
        if not self.reads_mean:
            return last
        sums = mx.cumsum(hidden.astype(mx.float32), axis=1)
        starts = mx.zeros_like(lengths) if starts is None else starts
        before = mx.where((starts > 0)[..., None], states_at(sums, mx.maximum(starts, 1)), 0.0)
        mean = (states_at(sums, lengths) - before) / (lengths - starts)[..., None]
        return mx.concatenate([last, mean], axis=-1)

    def replace_head(self, weight: npt.NDArray[np.float64]) -> None:
        """Use the head `weight` [P D], which gives log-odds, without a bias; the divisor of the scores stays."""
        parts = np.split((self.scale.logit_std * weight).astype(np.float32), len(self.weights))
        self._head |= {name: mx.array(part) for name, part in zip(self.weights, parts, strict=True)}
        self._head["head.bias"] = mx.zeros(())

    @property
    def log_nu(self) -> mx.array | None:
        """Parameter of `maths.davidson_logprobs`; None if the model allows no ties."""
        return self._head.get("tie.log_nu")

    def parameters(self) -> Parameters:
        """Return all trained arrays by name.

        These are `adapter.` and the full name of each LoRA array, `head.weight` [D], `head.bias`, `head.mean_weight`
        [D] if the model reads the mean, and `tie.log_nu` if it allows ties.
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
    score: Read,
    sequences: Sequence[Sequence[int]],
    micro_batch_tokens: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
    starts: Sequence[int] | None = None,
) -> Scores:
    """Compute the raw score of each sequence of tokens, reporting progress (done, total). Returns [N].

    Sequences that another one begins with are read in its pass: a state knows nothing of the tokens after it. score:
    scores a micro-batch, as `RewardModel.scores` does, or reads its states, as `RewardModel.states` does: [N, D] then.
    starts: places where completions begin; None: the whole sequences are completions.
    """
    scores, read = np.empty(0), _with_beginnings(sequences)
    lengths = [len(sequences[members[-1]]) for members in read]
    for rows in micro_batch_rows(lengths, micro_batch_tokens, progress=progress):
        part = mx.array(pad([sequences[read[row][-1]] for row in rows]))
        ends = pad([[len(sequences[member]) for member in read[row]] for row in rows])
        ends = np.maximum(ends, 1)  # some have fewer beginnings than others: any place will do there
        begins = pad([[starts[member] if starts else 0 for member in read[row]] for row in rows])
        found = np.array(score(part, mx.array(ends), mx.array(begins)))  # frees this part's graph
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
