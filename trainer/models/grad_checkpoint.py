"""Gradient checkpointing: the backward pass computes each block again instead of keeping what its forward pass made.

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

from trainer.errors import ModelError
from trainer.models.adapters import LoRA
from trainer.models.cpu.kernels import check_compiler
from trainer.models.trunk import differentiable, family_of, hidden_states

_TOLERANCE = 0.01  # of a gradient's norm; one whose path is cut differs by far more, rounding by far less
_HOLE = object()  # in a tree, in the place of an array


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
    """Raise ModelError for a backbone whose adapter gets other gradients from checkpointed blocks.

    That happens where a block hands something on that is neither argument nor result. The check takes two passes over
    four tokens; the adapter has random weights meanwhile, because with B = 0 the gradient of A is 0.
    """
    adapters = _adapters(backbone)
    arrays = _arrays(adapters)
    keys = mx.random.split(mx.random.key(0), len(arrays))
    drawn = [mx.random.normal(array.shape, key=key) * 0.02 for array, key in zip(arrays, keys, strict=True)]

    def loss(arrays: list[mx.array]) -> mx.array:
        with _arrays_in(adapters, arrays):
            states = hidden_states(backbone, mx.array([[0, 1, 2, 3]])).astype(mx.float32)
        return (states * mx.random.normal(states.shape, key=mx.random.key(1))).sum()

    with differentiable(backbone):
        expected = mx.grad(loss)(drawn)
        mx.eval(expected)
        try:
            with checkpointed(backbone):
                found = mx.grad(loss)(drawn)
                mx.eval(found)
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            check_compiler(error)
            found = [mx.zeros_like(array) for array in expected]
    bound = [_TOLERANCE * mx.linalg.norm(array) for array in expected]
    off = [mx.linalg.norm(mine - other) for mine, other in zip(found, expected, strict=True)]
    if not all(bool(error <= most) for error, most in zip(off, bound, strict=True)):
        raise ModelError(
            f"models of the family {family_of(backbone)} cannot be trained with optim.grad_checkpoint, because their "
            "blocks pass on more than their results: set it to false, and use a smaller optim.micro_batch_tokens"
        )


@cache
def _checkpointed(kind: type[nn.Module]) -> type[nn.Module]:
    """Return a subclass of `kind` whose call keeps only its inputs for the backward pass."""

    def call(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
        adapters = _adapters(block)
        own = _arrays(adapters)
        inputs, given = _split((args, kwargs))
        outputs: Any = None

        def compute(arrays: list[mx.array]) -> tuple[Any, list[mx.array]]:
            args, kwargs = _joined(inputs, arrays[len(own) :])
            with _arrays_in(adapters, arrays):
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

        results: Any = forward([*own, *given])
        return _joined(outputs, results)

    return type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})


def _adapters(module: nn.Module) -> list[LoRA]:
    return [layer for layer in module.modules() if isinstance(layer, LoRA)]


def _arrays(adapters: Sequence[LoRA]) -> list[mx.array]:
    return [array for layer in adapters for array in (layer.lora_a, layer.lora_b)]


@contextmanager
def _arrays_in(adapters: Sequence[LoRA], arrays: Sequence[mx.array]) -> Iterator[None]:
    """Have the first of `arrays` in `adapters` inside the block; no traced array may stay in the model."""
    before = _arrays(adapters)
    try:
        _put(adapters, arrays)
        yield
    finally:
        _put(adapters, before)


def _put(adapters: Sequence[LoRA], arrays: Sequence[mx.array]) -> None:
    for place, layer in enumerate(adapters):
        layer.lora_a, layer.lora_b = arrays[2 * place], arrays[2 * place + 1]


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
