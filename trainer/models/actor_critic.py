"""ActorCriticLLM: policy, reference and value model on one frozen backbone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Literal

import mlx.core as mx
import mlx.nn as nn

from trainer.arrays import filled
from trainer.config.schema import ModelConfig
from trainer.errors import ModelError
from trainer.models.adapters import (
    ADAPTER,
    Parameters,
    draw_lora,
    linear_places,
    lora_parameters,
    new_adapter,
    only_adapter,
    update_lora,
)
from trainer.models.fitted_critic import FittedCritic, half_way
from trainer.models.forward import Forward, check_family, hidden_states, logits_of

Want = Literal["both", "logits", "values"]


class ActorCriticLLM:
    """A language model with an actor, a critic and a reference in one set of weights.

    policy = backbone + LoRA adapter; reference = the same backbone with the adapter off; value = least squares on the
    reference's states, or (`value_model = "head"`) a linear head on the policy's, or (`"adapter"`) on those of an
    adapter of its own. Only adapters and head are trained by gradients. The logits come from the model's own head.
    """

    def __init__(self, backbone: nn.Module, config: ModelConfig, *, key: mx.array) -> None:
        policy_key, value_key = mx.random.split(key)
        self.backbone = backbone
        check_family(backbone)
        backbone.freeze()
        self._layers, self.adapter_config = new_adapter(backbone, config, policy_key)
        self._places = linear_places(backbone)
        for name, layer in self._layers.items():
            self._places[name].parent[self._places[name].key] = layer
        self.value_model = config.value_model
        width = hidden_states(backbone, mx.array([[0]])).shape[-1]
        self.fitted = FittedCritic(width) if self.value_model == "fitted" else None
        # Zero, so that the first advantages are the rewards themselves and not the noise of a random head.
        self._value = {} if self.fitted else {"head.weight": mx.zeros((width,)), "head.bias": mx.zeros(())}
        self.value_scale: float | None = None
        """Unit of the values: the head predicts multiples of it. None, before the first returns, counts as 1."""
        if self.value_model == "adapter":
            policy = self.policy_parameters()
            draw_lora(self._layers.values(), value_key)
            self._value |= lora_parameters(self._layers, ADAPTER)
            update_lora(self._layers, policy)
        backbone.eval()  # dropout is off in rollout, scoring and update
        mx.eval(backbone.state, self._value)

    def __call__(
        self,
        sequences: mx.array,
        prompt_lengths: mx.array,
        width: int,
        *,
        want: Want = "both",
        fits: bool = False,
    ) -> Forward:
        """Run one pass over right-padded sequences.

        Attention is causal, so padding on the right changes nothing before it. The state before response token t is the
        hidden state of position prompt_length - 1 + t.

        sequences: [B, L] ids; prompt_lengths: [B]; width: T, the longest response. fits: also return what a
        fitted critic reads.
        """
        needs_policy = want != "values" or self.value_model == "head"
        positions = prompt_lengths[:, None] - 1 + mx.arange(width + 1)[None]
        positions = mx.minimum(positions, sequences.shape[1] - 1)  # padding; every caller masks it
        at_responses = partial(mx.take_along_axis, indices=positions[..., None], axis=1)  # [B, L, D] to [B, T + 1, D]
        fitted = self.fitted if fits else None
        with half_way(self.backbone) if fitted else nullcontext(list[mx.array]()) as seen:
            last = hidden_states(self.backbone, sequences) if needs_policy else None
        states = None if last is None else at_responses(last)
        # Some families call the parts of their blocks and never a block: then it reads the last states.
        read = fitted.read(at_responses(seen[0] if seen else filled(last))) if fitted else None
        before = None if want == "values" else filled(states)[:, :-1]
        values = None
        if want != "logits":
            if self.value_model == "adapter":
                policy = self.policy_parameters()
                try:
                    update_lora(self._layers, self._value, ADAPTER)
                    states = at_responses(hidden_states(self.backbone, sequences))
                finally:
                    update_lora(self._layers, policy)
            multiples = filled(states).astype(mx.float32) @ self._value["head.weight"] + self._value["head.bias"]
            values = multiples * (self.value_scale or 1.0)
        return Forward(before, values, partial(logits_of, self.backbone), read)

    def reference(self) -> AbstractContextManager[None]:
        """Make the policy the reference inside the block: the backbone with its adapter off."""
        return only_adapter(self._places, {})

    @contextmanager
    def policy(self, parameters: Parameters) -> Iterator[None]:
        """Use the adapter `parameters` as the policy inside the block, even within `reference`.

        The adapter's arrays are restored afterwards.
        """
        before = self.policy_parameters()
        try:
            self.update_policy(parameters)
            with only_adapter(self._places, self._layers):
                yield
        finally:
            self.update_policy(before)

    def policy_parameters(self) -> Parameters:
        """Return the policy's LoRA arrays by full name."""
        return lora_parameters(self._layers)

    def value_parameters(self) -> Parameters:
        """Return what a gradient trains of the critic: `head.weight` [D], `head.bias`, and its adapter if it has one.

        A fitted critic has none of it.
        """
        return dict(self._value)

    def update_policy(self, parameters: Parameters) -> None:
        """Replace the arrays of the policy's adapter. Raises ModelError if they do not fit this model."""
        check_fit(parameters, self.policy_parameters(), "adapter of the policy")
        update_lora(self._layers, parameters)

    def update_value(self, parameters: Parameters) -> None:
        """Replace the arrays of the critic. Raises ModelError if they do not fit this model."""
        check_fit(parameters, self._value, "critic")
        self._value = dict(parameters)

    def use_value_scale(self, scale: float) -> None:
        """Have the head predict multiples of `scale`, and leave its values as they are."""
        factor = (self.value_scale or 1.0) / scale
        self._value |= {name: self._value[name] * factor for name in ("head.weight", "head.bias")}
        self.value_scale = scale


def check_fit(parameters: Parameters, own: Parameters, what: str) -> None:
    """Raise ModelError unless `parameters` have the names and shapes of the model's `own`."""
    for name in sorted(parameters.keys() | own.keys()):
        if name not in parameters or name not in own or parameters[name].shape != own[name].shape:
            there, wanted = (list(arrays[name].shape) if name in arrays else "none" for arrays in (parameters, own))
            raise ModelError(
                f"the {what} was trained on another model: '{name}' is {there}, this model has {wanted}; use its "
                "model.path, model.lora_rank, model.lora_targets, model.lora_layers and model.value_model"
            )
