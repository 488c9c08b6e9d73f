"""Places of linear layers in a backbone, with or without an adapter around them."""

from __future__ import annotations

from typing import Any, NamedTuple

import mlx.nn as nn
from mlx_lm.tuner.lora import LoRALinear

from trainer.config.schema import BackboneConfig
from trainer.errors import ModelError

_WRAPPED = "linear"  # LoRALinear's name for the layer that it wraps


class Place(NamedTuple):
    """Place of a module: `key` in its parent."""

    parent: Any  # a module, a list or a dict of modules
    key: str | int

    @property
    def module(self) -> nn.Module:
        """Module that is at this place now."""
        module: nn.Module = self.parent[self.key]
        return module

    def put(self, module: nn.Module) -> None:
        """Put `module` at this place."""
        self.parent[self.key] = module


def linear_places(backbone: nn.Module) -> dict[str, Place]:
    """Return the places of all linear layers by full name; an adapter counts as the layer that it wraps."""
    return {name: _place(backbone, name) for name in _linears(backbone)}


def adapter_places(backbone: nn.Module, config: BackboneConfig) -> tuple[list[str], dict[str, Any]]:
    """Return the full names of the linear layers that get an adapter, and mlx-lm's adapter_config.

    Raises ModelError for an unknown target; the message lists the linear layers of the model.
    """
    blocks = backbone.layers
    count = config.lora_layers or len(blocks)
    by_block = [_linears(block) for block in blocks]
    known = sorted({name for names in by_block for name in names})
    ends = {name.rpartition(".")[2] for name in known}
    if unknown := [target for target in config.lora_targets if target not in ends and target not in known]:
        raise ModelError(
            f"model.lora_targets names {', '.join(unknown)}, but the model's blocks have the linear layers "
            f"{', '.join(sorted(ends))}"
        )
    keys = [name for name in known if name.rpartition(".")[2] in config.lora_targets or name in config.lora_targets]
    targets = {id(_place(block, key).module) for block in blocks[-count:] for key in keys if key in _linears(block)}
    names = [name for name, place in linear_places(backbone).items() if id(place.module) in targets]
    parameters = {"rank": config.lora_rank, "scale": config.lora_scale, "dropout": 0.0, "keys": keys}
    return names, {"fine_tune_type": "lora", "num_layers": count, "lora_parameters": parameters}


def _linears(root: nn.Module) -> list[str]:
    modules = dict(root.named_modules())
    wrapped = {f"{name}.{_WRAPPED}" for name, module in modules.items() if isinstance(module, LoRALinear)}
    kinds = (nn.Linear, nn.QuantizedLinear, LoRALinear)
    return sorted(name for name, module in modules.items() if isinstance(module, kinds) and name not in wrapped)


def _place(root: nn.Module, name: str) -> Place:
    *path, last = name.split(".")
    node: Any = root
    for part in path:
        node = node[int(part)] if isinstance(node, list) else node[part]
    return Place(node, int(last) if isinstance(node, list) else last)
