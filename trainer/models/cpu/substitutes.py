"""Functions of mlx-lm that have a faster version for MLX's CPU backend, and their exchange in a family's module."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import mlx.nn as nn
from mlx_lm.models import activations, base

from trainer.models.cpu.attention import attention
from trainer.models.cpu.kernels import swiglu

_FASTER: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {  # mlx-lm's own, ours
    "swiglu": (activations.swiglu, swiglu),
    "scaled_dot_product_attention": (base.scaled_dot_product_attention, attention),
}


def use_faster_functions(backbone: nn.Module) -> set[str]:
    """Make the family of `backbone` use our versions of mlx-lm's functions; return the names of those that it has.

    This replaces the names in the family's module, so it applies to every model of that family in this process.
    """
    found = set()
    for module in {sys.modules[type(layer).__module__] for layer in backbone.modules()}:
        for name, pair in _FASTER.items():
            if getattr(module, name, None) in pair and module is not base:
                setattr(module, name, pair[1])
                found.add(name)
    return found
