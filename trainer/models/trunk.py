"""The trunk of a language model and what follows it, in any family of mlx-lm, and which families can be trained.

Families differ in how they call their trunk and in what they do with its hidden states (tied embeddings, soft caps,
scales). So neither is reimplemented: the model itself is called, with a substitute in the place of its trunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from trainer.errors import ModelError
from trainer.models.adapters import reason_of
from trainer.models.cpu.kernels import check_compiler

_WRONG = {  # families that cannot be trained with mlx-lm 0.32.2
    "deepseek_v41": "mlx-lm computes no gradient for the choice of what its attention reads",
    "phi3small": "mlx-lm computes this family incorrectly in training: its block mask depends on the input's length",
    "plamo3": "mlx-lm computes this family incorrectly in training: its attention window is a token too long",
    "recurrent_gemma": "mlx-lm cannot freeze its weights",
}
_NAMES = ("model", "transformer", "backbone")  # of the trunk within the text model; nearly always the first


def language_model(backbone: nn.Module) -> nn.Module:
    """Return the text model of a backbone: itself, or the `language_model` of a multimodal wrapper."""
    return backbone.language_model if "language_model" in backbone else backbone


def family_of(backbone: nn.Module) -> str:
    """Return the name of mlx-lm's module of this family. Several model_types of config.json may share one module."""
    return type(backbone).__module__.rpartition(".")[2]


def check_family(backbone: nn.Module) -> None:
    """Raise ModelError for a family that mlx-lm computes wrongly, or whose trunk and head cannot be separated."""
    family = family_of(backbone)
    if problem := _WRONG.get(family) or _inseparable(backbone):
        raise ModelError(
            f"models of the family {family} cannot be trained here ({problem}): choose another, such as llama, "
            "qwen3 or gemma3"
        )


def vocabulary_size(backbone: nn.Module) -> int:
    """Return the number of token ids that the model knows, from 0 on."""
    model = language_model(backbone)
    if size := getattr(getattr(model, "args", None), "vocab_size", 0):
        return int(size)
    embeddings = (nn.Embedding, nn.QuantizedEmbedding)
    return max(len(module.weight) for module in model.modules() if isinstance(module, embeddings))


def hidden_size(backbone: nn.Module) -> int:
    """Return the width of the hidden states. It costs no pass: shapes are known before anything is computed."""
    return hidden_states(backbone, mx.array([[0]])).shape[-1]


def hidden_states(backbone: nn.Module, tokens: mx.array) -> mx.array:
    """Return the trunk's output for `tokens` [B, L] without a cache, after the final norm: [B, L, D].

    The model's head is put on it lazily, and never computed.
    """
    with _stand_in(backbone) as trunk:
        language_model(backbone)(tokens)
    return trunk.kept["states"]


def logits_of(backbone: nn.Module, states: mx.array) -> mx.array:
    """Apply the model's own head to hidden states: [B, T, D] to [B, T, V]."""
    with _stand_in(backbone) as trunk:
        trunk.kept["states"] = states
        logits: mx.array = language_model(backbone)(mx.zeros(states.shape[:2], dtype=mx.int32))
    return logits


@contextmanager
def differentiable(backbone: nn.Module) -> Iterator[None]:
    """Keep the backbone in training mode inside the block, with dropout off, and in evaluation mode afterwards.

    In training mode, hybrid models use operations that have a gradient in place of Metal kernels that have none.
    """
    backbone.train()
    for module in backbone.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    try:
        yield
    finally:
        backbone.eval()


def _inseparable(backbone: nn.Module) -> str:
    """Return why trunk and head cannot be separated, found by a pass over two tokens, or an empty string.

    Raises ModelError if a kernel cannot be compiled.
    """
    tokens = mx.array([[0, 1]])
    try:
        expected = backbone(tokens)
        mx.eval(expected)
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        check_compiler(error)
        return f"mlx-lm fails on a pass over two tokens: {reason_of(error)}"
    try:
        states = hidden_states(backbone, tokens)
        logits = logits_of(backbone, states)
        if not mx.allclose(logits, expected, atol=1e-3).item():
            return "the trainer cannot separate its head from its trunk: alone, the head gives other logits"
        if states.shape == logits.shape and mx.array_equal(states, logits):
            return "the trainer cannot separate its head from its trunk: the trunk returns logits"
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        check_compiler(error)
        return reason_of(error)
    return ""


class _StandIn(nn.Module):
    """Substitute for a trunk, which keeps the states that it returns, or returns those it was given.

    Otherwise it behaves like the trunk. Its attributes are none of nn.Module's, and so no parameters of the model.
    """

    kept: dict[str, mx.array]

    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        object.__setattr__(self, "_trunk", trunk)
        object.__setattr__(self, "kept", {})

    def __call__(self, *args: Any, **kwargs: Any) -> mx.array:
        if "states" not in self.kept:
            self.kept["states"] = object.__getattribute__(self, "_trunk")(*args, **kwargs)
        return self.kept["states"]

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_trunk"), name)


@contextmanager
def _stand_in(backbone: nn.Module) -> Iterator[_StandIn]:
    """Put a substitute in the place of the trunk inside the block. Raises AttributeError if no trunk is known."""
    model = language_model(backbone)
    name = next((name for name in _NAMES if isinstance(model.get(name), nn.Module)), _NAMES[0])
    trunk = getattr(model, name)
    substitute = _StandIn(trunk)
    setattr(model, name, substitute)
    try:
        yield substitute
    finally:
        setattr(model, name, trunk)
