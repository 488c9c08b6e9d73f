"""LoRA adapters on a frozen backbone: attach, switch off, save and load in mlx-lm's format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten
from mlx_lm.tuner.lora import LoRALinear
from mlx_lm.tuner.utils import load_adapters

from trainer.config.schema import BackboneConfig
from trainer.errors import ModelError, shortened

ADAPTER_FILE = "adapters.safetensors"
_WRAPPED = "linear"  # LoRALinear's name for the layer that it wraps

Parameters = dict[str, mx.array]  # arrays by full name


class Place(NamedTuple):
    """Place of a linear layer in a backbone: `key` in its parent. An adapter counts as the layer that it wraps."""

    parent: Any  # a module, a list or a dict of modules
    key: str | int

    @property
    def module(self) -> nn.Module:
        """Module that is at this place now."""
        module: nn.Module = self.parent[self.key]
        return module

    @property
    def linear(self) -> nn.Module:
        """Linear layer at this place, without an adapter around it."""
        module = self.module
        return module.linear if isinstance(module, LoRALinear) else module

    def put(self, module: nn.Module) -> None:
        """Put `module` at this place."""
        self.parent[self.key] = module


class NewAdapter(NamedTuple):
    """LoRA layers that are not in the backbone yet, and what mlx-lm's adapter_config.json says of them."""

    layers: dict[str, LoRALinear]  # by full name, sorted
    config: dict[str, Any]


def linear_places(backbone: nn.Module) -> dict[str, Place]:
    """Return the places of all linear layers by full name, sorted."""
    return {name: _place(backbone, name) for name in _linear_names(backbone)}


def new_adapter(backbone: nn.Module, config: BackboneConfig, key: mx.array) -> NewAdapter:
    """Return LoRA layers around the configured targets of `backbone`, which stays as it is.

    A is drawn from `key`, uniform in +-1/sqrt(inputs) as in mlx-lm; B is 0, so a model starts as the backbone. Raises
    ModelError for an unknown target; the message lists the linear layers of the model.
    """
    blocks = backbone.layers
    count = config.lora_layers or len(blocks)
    by_block = [_linear_names(block) for block in blocks]  # of all blocks, because they differ in hybrid models
    known = sorted({name for names in by_block for name in names})
    ends = {name.rpartition(".")[2] for name in known}
    if unknown := [target for target in config.lora_targets if target not in ends and target not in known]:
        raise ModelError(
            f"model.lora_targets names {', '.join(unknown)}, but the model's blocks have the linear layers "
            f"{', '.join(sorted(ends))}"
        )
    keys = [name for name in known if name.rpartition(".")[2] in config.lora_targets or name in config.lora_targets]
    chosen = zip(blocks[-count:], by_block[-count:], strict=True)
    targets = {id(_place(block, name).module) for block, names in chosen for name in keys if name in names}
    layers = {
        name: LoRALinear.from_base(place.linear, r=config.lora_rank, dropout=0.0, scale=config.lora_scale)
        for name, place in linear_places(backbone).items()
        if id(place.module) in targets
    }
    draw_lora(layers.values(), key)
    parameters = {"rank": config.lora_rank, "scale": config.lora_scale, "dropout": 0.0, "keys": keys}
    return NewAdapter(layers, {"fine_tune_type": "lora", "num_layers": count, "lora_parameters": parameters})


def attach_lora(backbone: nn.Module, config: BackboneConfig, key: mx.array) -> dict[str, Any]:
    """Freeze `backbone` and put the layers of `new_adapter` into it. Returns mlx-lm's adapter_config."""
    backbone.freeze()
    adapter, places = new_adapter(backbone, config, key), linear_places(backbone)
    for name, layer in adapter.layers.items():
        places[name].put(layer)
    return adapter.config


@contextmanager
def only_adapter(places: Mapping[str, Place], layers: Mapping[str, LoRALinear]) -> Iterator[None]:
    """Have `layers` and no other adapter at `places` inside the block; restore the old ones, even on error."""
    before = {name: place.module for name, place in places.items()}
    try:
        for name, place in places.items():
            place.put(layers.get(name, place.linear))
        yield
    finally:
        for name, place in places.items():
            place.put(before[name])


def draw_lora(layers: Iterable[LoRALinear], key: mx.array) -> None:
    """Give every layer a fresh A from `key`, and B = 0."""
    for layer in layers:
        key, draw = mx.random.split(key)
        bound = layer.lora_a.shape[0] ** -0.5
        layer.lora_a = mx.random.uniform(-bound, bound, layer.lora_a.shape, key=draw)
        layer.lora_b = mx.zeros_like(layer.lora_b)


def _linear_names(root: nn.Module) -> list[str]:
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


def lora_layers(backbone: nn.Module) -> list[tuple[str, LoRALinear]]:
    """Return the LoRA layers with their names, in a fixed order."""
    return sorted((name, module) for name, module in backbone.named_modules() if isinstance(module, LoRALinear))


def lora_parameters(backbone: nn.Module) -> Parameters:
    """Return the adapter's arrays by full name, such as `model.layers.0.self_attn.q_proj.lora_a`."""
    return {f"{name}.{leaf}": layer[leaf] for name, layer in lora_layers(backbone) for leaf in ("lora_a", "lora_b")}


def update_lora(backbone: nn.Module, parameters: Parameters) -> None:
    """Replace the arrays in the LoRA layers of `backbone`."""
    for name, layer in lora_layers(backbone):
        layer.lora_a, layer.lora_b = parameters[f"{name}.lora_a"], parameters[f"{name}.lora_b"]


@contextmanager
def adapter_scaled(backbone: nn.Module, scale: float) -> Iterator[None]:
    """Scale the adapter's output by `scale` inside the block; restore the scale afterwards, even on error.

    At scale 0, `backbone` is the base model, bit for bit. mx.compile bakes the scale in: never reuse a function that
    was compiled outside.
    """
    layers = [layer for _, layer in lora_layers(backbone)]
    scales = [layer.scale for layer in layers]
    try:
        for layer in layers:
            layer.scale = scale
        yield
    finally:
        for layer, scale in zip(layers, scales, strict=True):
            layer.scale = scale


def save_adapter(parameters: Parameters, config: dict[str, Any], folder: Path) -> None:
    """Write an adapter to `folder` in the format of `mlx_lm.generate --adapter-path` and `mlx_lm.fuse`."""
    folder.mkdir(exist_ok=True)
    mx.save_safetensors(str(folder / ADAPTER_FILE), parameters)
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def check_adapter(folder: Path) -> None:
    """Raise ModelError unless `folder` holds an adapter in mlx-lm's format."""
    for name in ("adapter_config.json", ADAPTER_FILE):
        if not (folder / name).is_file():
            raise ModelError(f"model.adapter = '{folder}' has no {name}: name a folder that `mlx_lm.lora` wrote")


def fuse_adapter(backbone: nn.Module, folder: Path) -> None:
    """Load an SFT adapter in mlx-lm's format and fold it into `backbone`'s weights. Raises ModelError."""
    check_adapter(folder)
    try:
        load_adapters(backbone, str(folder))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ModelError(
            f"model.adapter = '{folder}' does not fit the model ({reason_of(error)}): "
            "use the model that it was trained on, or leave model.adapter empty"
        ) from error
    if fused := [(name, module.fuse()) for name, module in backbone.named_modules() if hasattr(module, "fuse")]:
        backbone.update_modules(tree_unflatten(fused))


def reason_of(error: BaseException) -> str:
    """Return the message of an exception in one line of at most 200 characters."""
    return shortened(" ".join(str(error).split()) or type(error).__name__, 200)
