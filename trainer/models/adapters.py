"""LoRA adapters on a frozen backbone: drawn, switched on and off, saved and loaded in mlx-lm's format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear
from mlx_lm.tuner.lora import LoRALinear, LoRASwitchLinear
from mlx_lm.tuner.utils import load_adapters

from trainer.config.schema import BackboneConfig
from trainer.errors import ModelError, StorageError, one_line
from trainer.files import FileFormat, open_regular, read_json

ADAPTER_FILE = "adapters.safetensors"
_SIDECAR = "adapter_config.json"
ADAPTER_FORMAT = FileFormat("schema")
ADAPTER = "adapter."  # prefix of an adapter's arrays among those of a critic or reward model
_WRAPPED = "linear"  # name in a LoRA layer of the layer that it wraps

AUTO, EXPERTS = "auto", "experts"  # in model.lora_targets, besides names of layers
_AUTO = frozenset(  # by the end of the name: what makes queries and values, or feeds a recurrence in their place
    [
        *("q_proj", "v_proj", "c_q", "c_v", "attn_query", "attn_value", "r_proj"),
        *("qkv_proj", "q_k_v_proj", "qkvg_proj", "query_key_value", "Wqkv", "wqkv", "W_pack", "c_attn"),
        *("q_b_proj", "kv_a_proj_with_mqa", "kv_proj"),  # multi-head latent attention
        *("in_proj", "in_proj_qkv", "in_proj_qkvz", "linear_x"),  # recurrences, linear attention, convolutions
    ]
)
_NOT_AUTO = ("indexer", "compressor")  # they choose what attention reads, by a top-k that has no gradient

Parameters = dict[str, mx.array]  # arrays by full name
LoRA: TypeAlias = LoRALinear | LoRASwitchLinear
_EXPERT_LAYERS = (SwitchLinear, QuantizedSwitchLinear)


class Place(NamedTuple):
    """Place of a linear layer in a backbone: `key` in its parent. An adapter counts as the layer that it wraps."""

    parent: Any  # a module, a list or a dict of modules
    key: str | int
    linear: nn.Module  # without an adapter around it


def linear_places(backbone: nn.Module) -> dict[str, Place]:
    """Return the places of all linear layers, those of experts included, by full name, sorted."""
    modules = dict(backbone.named_modules())
    wrapped = {f"{name}.{_WRAPPED}" for name, module in modules.items() if isinstance(module, LoRA)}
    # Not their subclasses: those of afm7 return several arrays, which a LoRA layer cannot add to.
    kinds = (nn.Linear, nn.QuantizedLinear, *_EXPERT_LAYERS, LoRALinear, LoRASwitchLinear)
    places = {}
    for name in sorted(name for name, module in modules.items() if type(module) in kinds and name not in wrapped):
        *path, last = name.split(".")
        parent: Any = backbone
        for part in path:
            parent = parent[int(part)] if isinstance(parent, list) else parent[part]
        module = modules[name]
        linear = module.linear if isinstance(module, LoRA) else module
        places[name] = Place(parent, int(last) if isinstance(parent, list) else last, linear)
    return places


def new_adapter(backbone: nn.Module, config: BackboneConfig, key: mx.array) -> tuple[dict[str, LoRA], dict[str, Any]]:
    """Return LoRA layers around the configured targets of `backbone`, which stays as it is, by full name, sorted.

    The other result is what mlx-lm's adapter_config.json says of them. A is drawn from `key`, uniform in
    +-1/sqrt(inputs) as in mlx-lm; B is 0, so a model starts as the backbone. Raises ModelError for a target that the
    model does not have; the message lists its linear layers.
    """
    blocks = backbone.layers
    count = config.lora_layers or len(blocks)
    known = {name: place.linear for block in blocks for name, place in linear_places(block).items()}  # hybrids differ
    meant = {target: {name for name in known if _is_meant(name, known[name], target)} for target in config.lora_targets}
    if lost := [target for target, names in meant.items() if not names]:
        ends = {name.rpartition(".")[2] for name, linear in known.items() if not isinstance(linear, _EXPERT_LAYERS)}
        raise ModelError(
            f"model.lora_targets names {', '.join(lost)}, but the model's blocks have the linear layers "
            f"{', '.join(sorted(ends))}"
        )
    keys = sorted(set().union(*meant.values()))
    chosen = [linear_places(block) for block in blocks[-count:]]
    targets = {id(places[name].linear) for places in chosen for name in keys if name in places}
    layers: dict[str, LoRA] = {}
    for name, place in linear_places(backbone).items():
        if id(place.linear) in targets:
            kind = LoRASwitchLinear if isinstance(place.linear, _EXPERT_LAYERS) else LoRALinear
            layers[name] = kind.from_base(place.linear, r=config.lora_rank, dropout=0.0, scale=config.lora_scale)
    draw_lora(layers.values(), key)
    parameters = {"rank": config.lora_rank, "scale": config.lora_scale, "dropout": 0.0, "keys": keys}
    return layers, {"fine_tune_type": "lora", "num_layers": count, "lora_parameters": parameters}


def _is_meant(name: str, linear: nn.Module, target: str) -> bool:
    """Return whether `target` means the layer `name` of a block. Experts are meant by their full name or as a whole."""
    end = name.rpartition(".")[2]
    if isinstance(linear, _EXPERT_LAYERS):
        return target in (EXPERTS, name)
    if target == AUTO:
        return end in _AUTO and not any(part in name for part in _NOT_AUTO)
    return target in (end, name)


@contextmanager
def only_adapter(places: Mapping[str, Place], layers: Mapping[str, LoRA]) -> Iterator[None]:
    """Have `layers` and no other adapter at `places` inside the block; restore the old ones, even on error.

    Without layers, the backbone is the base model, bit for bit.
    """
    before = {name: place.parent[place.key] for name, place in places.items()}
    try:
        for name, place in places.items():
            place.parent[place.key] = layers.get(name, place.linear)
        yield
    finally:
        for name, place in places.items():
            place.parent[place.key] = before[name]


def draw_lora(layers: Iterable[LoRA], key: mx.array) -> None:
    """Give every layer a fresh A from `key`, and B = 0."""
    for layer in layers:
        key, draw = mx.random.split(key)
        # [inputs, rank], or [experts, rank, inputs]
        bound = layer.lora_a.shape[-1 if isinstance(layer, LoRASwitchLinear) else 0] ** -0.5
        layer.lora_a = mx.random.uniform(-bound, bound, layer.lora_a.shape, key=draw)
        layer.lora_b = mx.zeros_like(layer.lora_b)


def lora_parameters(layers: Mapping[str, LoRA], prefix: str = "") -> Parameters:
    """Return the arrays of an adapter by `prefix` and full name, such as `model.layers.0.self_attn.q_proj.lora_a`."""
    return {f"{prefix}{name}.{leaf}": layer[leaf] for name, layer in layers.items() for leaf in ("lora_a", "lora_b")}


def update_lora(layers: Mapping[str, LoRA], parameters: Parameters, prefix: str = "") -> None:
    """Replace the arrays of an adapter with `parameters`, named as in `lora_parameters`."""
    for name, layer in layers.items():
        layer.lora_a, layer.lora_b = parameters[f"{prefix}{name}.lora_a"], parameters[f"{prefix}{name}.lora_b"]


def save_adapter(parameters: Parameters, config: dict[str, Any], folder: Path) -> None:
    """Write an adapter to `folder` in the format of `mlx_lm.generate --adapter-path` and `mlx_lm.fuse`."""
    folder.mkdir(exist_ok=True)
    mx.save_safetensors(str(folder / ADAPTER_FILE), parameters)
    content = {ADAPTER_FORMAT.key: ADAPTER_FORMAT.version} | config  # mlx-lm passes over the version
    (folder / _SIDECAR).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_adapter_config(folder: Path) -> dict[str, Any]:
    """Return adapter_config.json of the adapter in `folder`.

    Raises OSError and ValueError if it cannot be read, StorageError if a newer version wrote it.
    """
    return ADAPTER_FORMAT.current(read_json(folder / _SIDECAR), f"adapter '{folder}'")


def check_adapter(folder: Path, what: str = "model.adapter") -> None:
    """Raise ModelError unless `folder` holds an adapter in mlx-lm's format, which no newer version of ours wrote.

    what: the setting that names it.
    """
    for name in (_SIDECAR, ADAPTER_FILE):
        if not (folder / name).is_file():
            raise ModelError(f"{what} = '{folder}' has no {name}: name a folder that `mlx_lm.lora` or PEFT wrote")
    try:
        read_adapter_config(folder)
    except StorageError as error:
        raise ModelError(f"{what}: {error}") from None
    except (OSError, ValueError):  # loading it reports why
        return


def fuse_adapter(backbone: nn.Module, folder: Path) -> None:
    """Load an SFT adapter in mlx-lm's format and fold it into `backbone`'s weights. Raises ModelError."""
    check_adapter(folder)
    try:
        load_adapters(backbone, str(folder))
    except Exception as error:  # mlx-lm computes with the settings unseen
        raise ModelError(
            f"model.adapter = '{folder}' does not fit the model ({one_line(error, 200)}): "
            "use the model that it was trained on, or leave model.adapter empty"
        ) from error
    # Dequantised: rounded to a few bits again, a small change would be lost.
    modules = [(name, module) for name, module in backbone.named_modules() if hasattr(module, "fuse")]
    if fused := [(name, module.fuse(dequantize=True)) for name, module in modules]:
        backbone.update_modules(tree_unflatten(fused))


def write_arrays(path: Path, arrays: Parameters) -> None:
    """Write arrays as safetensors in a fixed order: a resumed run writes the same bytes as an uninterrupted one."""
    path.parent.mkdir(exist_ok=True)
    mx.save_safetensors(str(path), dict(sorted(arrays.items())))


def read_arrays(path: Path) -> Parameters:
    """Read what `write_arrays` wrote, and load it at once, because the folder may be pruned later."""
    open_regular(path).close()  # MLX would wait for a pipe
    arrays = cast("Parameters", mx.load(str(path)))
    mx.eval(arrays)
    return arrays
