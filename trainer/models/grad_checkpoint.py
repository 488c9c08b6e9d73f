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
from trainer.models.adapters import LoRA, linear_places, lora_parameters, only_adapter, update_lora
from trainer.models.trunk import family_of

_HOLE = object()  # in a tree, in the place of an array
_REFUSED = {  # families of mlx-lm 0.32; all others have the same gradient as without, to the bit (docs/families.md)
    "dbrx": "saves nothing: its blocks wait for the choice of experts, so all of their passes are kept",
    "iquestloopcoder": "saves nothing: its trunk calls the parts of its blocks instead of the blocks",
    "kimi_k3": "has another gradient with it: its blocks pass on more than their results",
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
        layers = {name: place.module for name, place in places.items() if isinstance(place.module, LoRA)}
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
