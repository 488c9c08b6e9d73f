"""The reward model: a LoRA adapter and a scalar head on a frozen backbone, which others may use at the same time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.tuner.lora import LoRALinear

from trainer.config.reward_model import RewardModelConfig
from trainer.models.actor_critic import hidden_size, language_model
from trainer.models.adapters import Parameters
from trainer.reward_model.places import Place, adapter_places, linear_places

ADAPTER = "adapter."  # how the names of the adapter's arrays begin among the parameters


class RewardModel:
    """r(sequence) = w . h + b, with h the hidden state of the sequence's last real token.

    Its LoRA layers stand in the backbone only inside `on`, so a policy on the same weights keeps its own.
    mean, std: of the raw scores on reference samples, which `normalized` takes out; logit_std: that by which a
    difference of raw scores is the log-odds that it was trained as.
    """

    def __init__(self, backbone: nn.Module, config: RewardModelConfig, *, key: mx.array) -> None:
        adapter_key, head_key = mx.random.split(key)
        self.backbone = backbone
        self.mean, self.std, self.logit_std = 0.0, 1.0, 1.0
        targets, self.adapter_config = adapter_places(backbone, config.model)
        self._linears = linear_places(backbone)
        self._adapter = {name: self._lora(self._linears[name], config) for name in targets}
        for layer in self._adapter.values():
            adapter_key, draw = mx.random.split(adapter_key)
            bound = layer.lora_a.shape[0] ** -0.5  # as in mlx-lm; B is 0, so it starts as the backbone
            layer.lora_a = mx.random.uniform(-bound, bound, layer.lora_a.shape, key=draw)
        width = hidden_size(backbone)
        # Variance 1/(d + 1), bias 0: Stiennon et al. 2020, "Learning to summarize", appendix B.1.
        self._head = {
            "head.weight": mx.random.normal((width,), key=head_key) / math.sqrt(width + 1),
            "head.bias": mx.zeros(()),
        }
        backbone.eval()
        mx.eval(backbone.state, self.parameters())

    @contextmanager
    def on(self) -> Iterator[None]:
        """Inside, the backbone has this adapter and no other; afterwards what was there, also after an error."""
        before = {name: place.module for name, place in self._linears.items()}
        try:
            for name, place in self._linears.items():
                present = before[name]
                place.put(self._adapter.get(name, present.linear if isinstance(present, LoRALinear) else present))
            yield
        finally:
            for name, place in self._linears.items():
                place.put(before[name])

    def scores(self, sequences: mx.array, lengths: mx.array) -> mx.array:
        """Raw scores. sequences: [N, L] ids, padded on the right by whatever; lengths: [N], at least 1. Returns [N]."""
        with self.on():
            hidden = language_model(self.backbone).model(sequences)  # [N, L, D], after the final norm
        last = mx.take_along_axis(hidden, (lengths - 1)[:, None, None], axis=1)[:, 0]
        return last.astype(mx.float32) @ self._head["head.weight"] + self._head["head.bias"]

    def normalized(self, scores: mx.array) -> mx.array:
        """Scores of mean 0 and deviation 1 on the reference samples."""
        return (scores - self.mean) / self.std

    def allow_ties(self, share: float) -> None:
        """Let ties be possible: `tie.log_nu` is trained along, from what makes `share` of equals ties."""
        self._head["tie.log_nu"] = mx.array(math.log(2 * share / (1 - share)))

    @property
    def log_nu(self) -> mx.array | None:
        """Of `maths.davidson_logprobs`; None where there are no ties."""
        return self._head.get("tie.log_nu")

    def parameters(self) -> Parameters:
        """All that is trained: `adapter.` and the full name of each LoRA array, `head.weight` [D], `head.bias`."""
        adapter = {
            f"{ADAPTER}{name}.{leaf}": layer[leaf]
            for name, layer in sorted(self._adapter.items())
            for leaf in ("lora_a", "lora_b")
        }
        return adapter | self._head

    def update(self, parameters: Parameters) -> None:
        """Put other arrays in."""
        for name, layer in self._adapter.items():
            layer.lora_a = parameters[f"{ADAPTER}{name}.lora_a"]
            layer.lora_b = parameters[f"{ADAPTER}{name}.lora_b"]
        self._head = {name: array for name, array in parameters.items() if not name.startswith(ADAPTER)}

    @staticmethod
    def _lora(place: Place, config: RewardModelConfig) -> LoRALinear:
        present = place.module
        linear = present.linear if isinstance(present, LoRALinear) else present
        return LoRALinear.from_base(linear, r=config.model.lora_rank, dropout=0.0, scale=config.model.lora_scale)
