"""The trunk of a language model and what follows it, in any family of mlx-lm, and which families can be trained.

Families differ in how they call their trunk and in what they do with its hidden states (tied embeddings, soft caps,
scales). So neither is reimplemented: the model itself is called, with a substitute in the place of its trunk.

Gradient checkpointing: the backward pass computes each block again instead of keeping what its forward pass made.
mlx-lm's `grad_checkpoint` changes the class of the blocks, for every model of the process and for good. Here only the
blocks of one backbone change, and only for the time of an update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

from trainer.errors import ModelError, one_line
from trainer.models.adapters import LoRA, linear_places, lora_parameters, only_adapter, update_lora
from trainer.models.kernels import check_compiler

_WRONG = {  # families that cannot be trained with mlx-lm 0.32.2
    "deepseek_v41": "mlx-lm computes no gradient for the choice of what its attention reads",
    "phi3small": "mlx-lm computes this family incorrectly in training: its block mask depends on the input's length",
    "plamo3": "mlx-lm computes this family incorrectly in training: its attention window is a token too long",
    "recurrent_gemma": "mlx-lm cannot freeze its weights",
}
_REFUSED = {  # families of mlx-lm 0.32; all others have the same gradient as without, to the bit (docs/families.md)
    "dbrx": "saves nothing: its blocks wait for the choice of experts, so all of their passes are kept",
    "iquestloopcoder": "saves nothing: its trunk calls the parts of its blocks instead of the blocks",
    "kimi_k3": "has another gradient with it: its blocks pass on more than their results",
}
_NAMES = ("model", "transformer", "backbone")  # of the trunk within the text model; nearly always the first
_HOLE = object()  # in a tree, in the place of an array


def family_of(backbone: nn.Module) -> str:
    """Return the name of mlx-lm's module of this family. Several model_types of config.json may share one module."""
    return type(backbone).__module__.rpartition(".")[2]


def check_family(backbone: nn.Module) -> None:
    """Raise ModelError for a family that mlx-lm computes wrongly, or whose trunk and head cannot be separated.

    The latter is tried on two tokens. Raises ModelError also if a kernel cannot be compiled.
    """
    family, tokens = family_of(backbone), mx.array([[0, 1]])
    problem = _WRONG.get(family, "")
    if not problem:
        doing = "mlx-lm fails on a pass over two tokens: "
        try:
            expected = backbone(tokens)
            mx.eval(expected)
            doing = ""
            states = hidden_states(backbone, tokens)
            logits = logits_of(backbone, states)
            if not mx.allclose(logits, expected, atol=1e-3).item():
                problem = "the trainer cannot separate its head from its trunk: alone, the head gives other logits"
            elif states.shape == logits.shape and mx.array_equal(states, logits):
                problem = "the trainer cannot separate its head from its trunk: the trunk returns logits"
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            check_compiler(error)
            problem = doing + one_line(error, 200)
    if problem:
        raise ModelError(
            f"models of the family {family} cannot be trained here ({problem}): choose another, such as llama, "
            "qwen3 or gemma3"
        )


def vocabulary_size(backbone: nn.Module) -> int:
    """Return the number of token ids that the model knows, from 0 on."""
    # A multimodal wrapper has a text model.
    model = backbone.language_model if "language_model" in backbone else backbone
    if size := getattr(getattr(model, "args", None), "vocab_size", 0):
        return int(size)
    embeddings = (nn.Embedding, nn.QuantizedEmbedding)
    return max(len(module.weight) for module in model.modules() if isinstance(module, embeddings))


def hidden_states(backbone: nn.Module, tokens: mx.array) -> mx.array:
    """Return the trunk's output for `tokens` [B, L] without a cache, after the final norm: [B, L, D].

    The model's head is put on it lazily, and never computed. The shape is known before anything is computed.
    """
    return _passed(backbone, tokens)[0]


def logits_of(backbone: nn.Module, states: mx.array) -> mx.array:
    """Apply the model's own head to hidden states: [B, T, D] to [B, T, V]."""
    return _passed(backbone, mx.zeros(states.shape[:2], dtype=mx.int32), states)[1]


def _passed(backbone: nn.Module, tokens: mx.array, states: mx.array | None = None) -> tuple[mx.array, mx.array]:
    """Return the trunk's output for `tokens`, or `states` in its place, and the logits of the model's head.

    Raises AttributeError if no trunk is known.
    """
    model = backbone.language_model if "language_model" in backbone else backbone
    name = next((name for name in _NAMES if isinstance(model.get(name), nn.Module)), _NAMES[0])
    trunk = getattr(model, name)
    substitute = _StandIn(trunk, states)
    setattr(model, name, substitute)
    try:
        logits: mx.array = model(tokens)
    finally:
        setattr(model, name, trunk)
    return substitute.states, logits


class _StandIn(nn.Module):
    """Substitute for a trunk, which keeps the states that it returns, or returns those it was given.

    Otherwise it behaves like the trunk. Its attributes are none of nn.Module's, and so no parameters of the model.
    """

    states: mx.array

    def __init__(self, trunk: nn.Module, states: mx.array | None) -> None:
        super().__init__()
        vars(self).update({"trunk_itself": trunk} if states is None else {"trunk_itself": trunk, "states": states})

    def __call__(self, *args: Any, **kwargs: Any) -> mx.array:
        if "states" not in vars(self):
            vars(self)["states"] = self.trunk_itself(*args, **kwargs)
        return self.states

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["trunk_itself"], name)


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


@contextmanager
def checkpointed(backbone: nn.Module) -> Iterator[None]:
    """Have each block of `backbone` keep only its inputs for the backward pass, inside the block of code.

    The class of each block is replaced by a subclass, so attributes, parameters and `isinstance` stay as they are.
    Gradients reach the block's arguments and its adapter, and nothing else.
    """
    blocks = {id(block): block for block in backbone.layers}.values()  # some families pass a block twice
    kinds = [type(block) for block in blocks]
    try:
        for block, kind in zip(blocks, kinds, strict=True):
            block.__class__ = _checkpointed(kind)  # type: ignore[arg-type]  # mypy takes classes of dicts for unhashable
        yield
    finally:
        for block, kind in zip(blocks, kinds, strict=True):
            block.__class__ = kind


def check_grad_checkpoint(backbone: nn.Module) -> None:
    """Raise ModelError for a family that saves nothing by it, or whose adapter would get other gradients."""
    family = family_of(backbone)
    if reason := _REFUSED.get(family):
        raise ModelError(
            f"optim.grad_checkpoint = true: the family {family} {reason}; set it to false, and use a smaller "
            "optim.micro_batch_tokens"
        )


@cache
def _checkpointed(kind: type[nn.Module]) -> type[nn.Module]:
    """Return a subclass of `kind` whose call keeps only its inputs for the backward pass."""

    def call(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
        places = linear_places(block)
        layers = {name: at for name, place in places.items() if isinstance(at := place.parent[place.key], LoRA)}
        own = lora_parameters(layers)
        inputs, given = _split((args, kwargs))
        outputs: Any = None

        def compute(arrays: list[mx.array]) -> tuple[Any, list[mx.array]]:
            args, kwargs = _joined(inputs, arrays[len(own) :])
            before = lora_parameters(layers)
            with only_adapter(places, layers):  # in the backward pass, a reward model's is no longer in the backbone
                try:
                    update_lora(layers, dict(zip(own, arrays, strict=False)))
                    return _split(kind.__call__(block, *args, **kwargs))
                finally:
                    update_lora(layers, before)  # no traced array stays

        @mx.custom_function
        def forward(arrays: list[mx.array]) -> list[mx.array]:
            nonlocal outputs
            outputs, results = compute(arrays)
            return results

        @forward.vjp
        def backward(arrays: Any, cotangents: Any, _: Any) -> Any:
            # Not before the gradient has come here; else all blocks could be computed again at once.
            waiting = mx.depends(arrays, cotangents)
            _, gradients = mx.vjp(lambda *arrays: compute(list(arrays))[1], waiting, cotangents)
            ours, others = gradients[: len(own)], gradients[len(own) :]
            if ours and others:
                # The adapter's gradients come first. Else what they are made of is kept until the end of the pass,
                # which takes three times the memory of the blocks' inputs.
                others = mx.depends(others, ours)
            return [*ours, *others]

        results: Any = forward([*own.values(), *given])
        return _joined(outputs, results)

    return type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})


def _split(tree: Any) -> tuple[Any, list[mx.array]]:
    """Return `tree` without its floating arrays, the only ones that have a gradient, and those arrays."""
    arrays: list[mx.array] = []

    def taken(leaf: Any) -> Any:
        if not isinstance(leaf, mx.array) or not mx.issubdtype(leaf.dtype, mx.floating):
            return leaf
        arrays.append(leaf)
        return _HOLE

    return tree_map(taken, tree), arrays


def _joined(tree: Any, arrays: Sequence[mx.array]) -> Any:
    """Return the tree that `_split` took apart, with `arrays` in the places of its own."""
    rest = iter(arrays)
    return tree_map(lambda leaf: next(rest) if leaf is _HOLE else leaf, tree)
