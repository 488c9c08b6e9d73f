"""Gradient checkpointing: the backward pass computes each block again instead of keeping what its forward pass made.

mlx-lm's `grad_checkpoint` changes the class of the blocks, for every model of the process and for good. Here only the
blocks of one backbone change, and only for the time of an update.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

from trainer.errors import ModelError
from trainer.models.adapters import (
    LoRA,
    Parameters,
    Place,
    linear_places,
    lora_parameters,
    only_adapter,
    update_lora,
)
from trainer.models.trunk import differentiable, family_of, hidden_states

_TOLERANCE = 0.01  # of a gradient's norm; one whose path is cut differs by far more, rounding by far less
_HOLE = object()  # in a tree, in the place of an array
_WAY_OUT = "set it to false, and use a smaller optim.micro_batch_tokens"
_SAVES_NOTHING = {  # families of mlx-lm 0.32.2
    "dbrx": "its blocks wait for the choice of experts, so all of their passes are kept",
    "iquestloopcoder": "its trunk calls the parts of its blocks instead of the blocks",
}


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
    """Raise ModelError for a backbone that saves nothing by it, or whose adapter gets other gradients.

    Gradients differ where a block hands something on that is neither argument nor result. The check takes two passes
    over four tokens; the adapter has random weights meanwhile, because with B = 0 the gradient of A is 0.
    """
    family = family_of(backbone)
    if reason := _SAVES_NOTHING.get(family):
        raise ModelError(
            f"models of the family {family} save nothing with optim.grad_checkpoint ({reason}): {_WAY_OUT}"
        )
    layers = _adapters(linear_places(backbone))
    before = lora_parameters(layers)
    keys = mx.random.split(mx.random.key(0), len(before))
    drawn = {
        name: mx.random.normal(array.shape, key=key) * 0.02
        for (name, array), key in zip(before.items(), keys, strict=True)
    }

    def loss(parameters: Parameters) -> mx.array:
        with _parameters_in(layers, parameters):
            states = hidden_states(backbone, mx.array([[0, 1, 2, 3]])).astype(mx.float32)
        return (states * mx.random.normal(states.shape, key=mx.random.key(1))).sum()

    with differentiable(backbone):
        expected = mx.grad(loss)(drawn)
        mx.eval(expected)
        with checkpointed(backbone):
            found = mx.grad(loss)(drawn)
            mx.eval(found)
    for name, array in expected.items():
        off, size = mx.linalg.norm(found[name] - array), mx.linalg.norm(array)
        if not bool(off <= _TOLERANCE * size):  # NaN is off too
            raise ModelError(
                f"models of the family {family} cannot be trained with optim.grad_checkpoint, because their blocks "
                f"pass on more than their results: {_WAY_OUT}"
            )


@cache
def _checkpointed(kind: type[nn.Module]) -> type[nn.Module]:
    """Return a subclass of `kind` whose call keeps only its inputs for the backward pass."""

    def call(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
        places = linear_places(block)
        layers = _adapters(places)
        own = lora_parameters(layers)
        inputs, given = _split((args, kwargs))
        outputs: Any = None

        def compute(arrays: list[mx.array]) -> tuple[Any, list[mx.array]]:
            args, kwargs = _joined(inputs, arrays[len(own) :])
            # In the backward pass, a reward model's adapter is no longer in the backbone.
            with only_adapter(places, layers), _parameters_in(layers, dict(zip(own, arrays, strict=False))):
                return _split(kind.__call__(block, *args, **kwargs))

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


def _adapters(places: Mapping[str, Place]) -> dict[str, LoRA]:
    """Return the LoRA layers at `places`, by name."""
    modules = {name: place.module for name, place in places.items()}
    return {name: module for name, module in modules.items() if isinstance(module, LoRA)}


@contextmanager
def _parameters_in(layers: Mapping[str, LoRA], parameters: Parameters) -> Iterator[None]:
    """Have `parameters` in `layers` inside the block, and no traced array afterwards."""
    before = lora_parameters(layers)
    try:
        update_lora(layers, parameters)
        yield
    finally:
        update_lora(layers, before)


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
