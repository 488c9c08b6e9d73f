"""LoRA adapters on a frozen backbone: attach, switch off, save and load in mlx-lm's format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten
from mlx_lm.tuner.lora import LoRALinear
from mlx_lm.tuner.utils import linear_to_lora_layers, load_adapters

from trainer.config.schema import ModelConfig
from trainer.errors import ModelError

ADAPTER_FILE = "adapters.safetensors"

Parameters = dict[str, mx.array]  # arrays by full name


def attach_lora(backbone: nn.Module, config: ModelConfig, key: mx.array) -> dict[str, Any]:
    """Freeze `backbone` and put LoRA layers on the configured targets. Returns mlx-lm's adapter_config.

    A is drawn from `key`, uniform in +-1/sqrt(inputs) as in mlx-lm; B is 0, so the policy starts as the backbone.
    Raises ModelError for an unknown target; the message lists the linear layers of the model.
    """
    blocks = backbone.layers
    linears = sorted(  # of all blocks, because they differ in hybrid models
        {
            name
            for block in blocks
            for name, module in block.named_modules()
            if isinstance(module, nn.Linear | nn.QuantizedLinear)
        }
    )
    keys = [name for name in linears if name.rpartition(".")[2] in config.lora_targets or name in config.lora_targets]
    known = {name.rpartition(".")[2] for name in linears} | set(linears)
    if unknown := [target for target in config.lora_targets if target not in known]:
        raise ModelError(
            f"model.lora_targets names {', '.join(unknown)}, but the model's blocks have the linear layers "
            f"{', '.join(sorted({name.rpartition('.')[2] for name in linears}))}"
        )
    layers = config.lora_layers or len(blocks)
    parameters = {"rank": config.lora_rank, "scale": config.lora_scale, "dropout": 0.0, "keys": keys}
    backbone.freeze()
    linear_to_lora_layers(backbone, layers, parameters)
    reset_lora(backbone, key)
    return {"fine_tune_type": "lora", "num_layers": layers, "lora_parameters": parameters}


def reset_lora(backbone: nn.Module, key: mx.array) -> None:
    """Give every LoRA layer of `backbone` a fresh A from `key`, and B = 0."""
    for _, layer in lora_layers(backbone):
        key, draw = mx.random.split(key)
        bound = layer.lora_a.shape[0] ** -0.5
        layer.lora_a = mx.random.uniform(-bound, bound, layer.lora_a.shape, key=draw)
        layer.lora_b = mx.zeros_like(layer.lora_b)


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
def adapter_off(backbone: nn.Module) -> Iterator[None]:
    """Make `backbone` the base model, bit for bit, inside the block; restore the adapter afterwards, even on error."""
    with adapter_scaled(backbone, 0.0):
        yield


@contextmanager
def adapter_scaled(backbone: nn.Module, scale: float) -> Iterator[None]:
    """Scale the adapter's output by `scale` inside the block; restore the scale afterwards, even on error.

    mx.compile bakes the scale in: never reuse a function that was compiled outside.
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
    reason = " ".join(str(error).split()) or type(error).__name__
    return reason if len(reason) <= 200 else f"{reason[:199]}…"
