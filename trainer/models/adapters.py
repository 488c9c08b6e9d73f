"""LoRA adapters on a frozen backbone: drawn, switched on and off, saved and loaded in mlx-lm's format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear
from mlx_lm.tuner.lora import LoRALinear, LoRASwitchLinear
from mlx_lm.tuner.utils import load_adapters

from trainer.config import AnyConfig
from trainer.config.schema import BackboneConfig
from trainer.errors import ModelError, StorageError, one_line, shortened
from trainer.files import open_regular, read_json
from trainer.format_versions import FileFormat

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
Configured = TypeVar("Configured", bound=AnyConfig)
LoRA: TypeAlias = LoRALinear | LoRASwitchLinear
_EXPERT_LAYERS = (SwitchLinear, QuantizedSwitchLinear)


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
        return module.linear if isinstance(module, LoRA) else module

    def put(self, module: nn.Module) -> None:
        """Put `module` at this place."""
        self.parent[self.key] = module


class NewAdapter(NamedTuple):
    """LoRA layers that are not in the backbone yet, and what mlx-lm's adapter_config.json says of them."""

    layers: dict[str, LoRA]  # by full name, sorted
    config: dict[str, Any]


def linear_places(backbone: nn.Module) -> dict[str, Place]:
    """Return the places of all linear layers, those of experts included, by full name, sorted."""
    modules = dict(backbone.named_modules())
    wrapped = {f"{name}.{_WRAPPED}" for name, module in modules.items() if isinstance(module, LoRA)}
    # Not their subclasses: those of afm7 return several arrays, which a LoRA layer cannot add to.
    kinds = (nn.Linear, nn.QuantizedLinear, *_EXPERT_LAYERS, LoRALinear, LoRASwitchLinear)
    names = sorted(name for name, module in modules.items() if type(module) in kinds and name not in wrapped)
    return {name: _place(backbone, name) for name in names}


def new_adapter(backbone: nn.Module, config: BackboneConfig, key: mx.array) -> NewAdapter:
    """Return LoRA layers around the configured targets of `backbone`, which stays as it is.

    A is drawn from `key`, uniform in +-1/sqrt(inputs) as in mlx-lm; B is 0, so a model starts as the backbone. Raises
    ModelError for a target that the model does not have; the message lists its linear layers.
    """
    blocks = backbone.layers
    count = config.lora_layers or len(blocks)
    known = {name: place.linear for block in blocks for name, place in linear_places(block).items()}  # hybrids differ
    keys = sorted(name for name, linear in known.items() if _is_target(name, linear, config.lora_targets))
    _check_targets(config.lora_targets, known)
    chosen = [linear_places(block) for block in blocks[-count:]]
    targets = {id(places[name].module) for places in chosen for name in keys if name in places}
    layers: dict[str, LoRA] = {}
    for name, place in linear_places(backbone).items():
        if id(place.module) in targets:
            kind = LoRASwitchLinear if isinstance(place.linear, _EXPERT_LAYERS) else LoRALinear
            layers[name] = kind.from_base(place.linear, r=config.lora_rank, dropout=0.0, scale=config.lora_scale)
    draw_lora(layers.values(), key)
    parameters = {"rank": config.lora_rank, "scale": config.lora_scale, "dropout": 0.0, "keys": keys}
    return NewAdapter(layers, {"fine_tune_type": "lora", "num_layers": count, "lora_parameters": parameters})


def _is_target(name: str, linear: nn.Module, targets: Sequence[str]) -> bool:
    """Return whether `targets` mean the layer `name` of a block. Experts are meant by their full name or as a whole."""
    end = name.rpartition(".")[2]
    if isinstance(linear, _EXPERT_LAYERS):
        return EXPERTS in targets or name in targets
    automatic = AUTO in targets and end in _AUTO and not any(part in name for part in _NOT_AUTO)
    return automatic or end in targets or name in targets


def _check_targets(targets: Sequence[str], known: Mapping[str, nn.Module]) -> None:
    """Raise ModelError for targets that mean none of the layers `known`, by their names in the blocks."""

    def is_known(target: str) -> bool:
        return any(_is_target(name, linear, [target]) for name, linear in known.items())

    if lost := [target for target in targets if not is_known(target)]:
        ends = {name.rpartition(".")[2] for name, linear in known.items() if not isinstance(linear, _EXPERT_LAYERS)}
        raise ModelError(
            f"model.lora_targets names {', '.join(lost)}, but the model's blocks have the linear layers "
            f"{', '.join(sorted(ends))}"
        )


@contextmanager
def only_adapter(places: Mapping[str, Place], layers: Mapping[str, LoRA]) -> Iterator[None]:
    """Have `layers` and no other adapter at `places` inside the block; restore the old ones, even on error.

    Without layers, the backbone is the base model, bit for bit.
    """
    before = {name: place.module for name, place in places.items()}
    try:
        for name, place in places.items():
            place.put(layers.get(name, place.linear))
        yield
    finally:
        for name, place in places.items():
            place.put(before[name])


def draw_lora(layers: Iterable[LoRA], key: mx.array) -> None:
    """Give every layer a fresh A from `key`, and B = 0."""
    for layer in layers:
        key, draw = mx.random.split(key)
        # [inputs, rank], or [experts, rank, inputs]
        bound = layer.lora_a.shape[-1 if isinstance(layer, LoRASwitchLinear) else 0] ** -0.5
        layer.lora_a = mx.random.uniform(-bound, bound, layer.lora_a.shape, key=draw)
        layer.lora_b = mx.zeros_like(layer.lora_b)


def _place(root: nn.Module, name: str) -> Place:
    *path, last = name.split(".")
    node: Any = root
    for part in path:
        node = node[int(part)] if isinstance(node, list) else node[part]
    return Place(node, int(last) if isinstance(node, list) else last)


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


def with_saved_layers(config: Configured, folder: Path) -> Configured:
    """Return `config` with the layers of the adapter in `folder` in place of `auto`, whose layers a version may change.

    An adapter that cannot be read leaves `config` as it is: loading it reports why. Raises StorageError if a newer
    version wrote it.
    """
    if AUTO not in config.model.lora_targets:
        return config
    try:
        keys = read_adapter_config(folder)["lora_parameters"]["keys"]
        model = type(config.model).model_validate(config.model.model_dump() | {"lora_targets": keys})
    except (OSError, ValueError, KeyError, TypeError):
        return config
    return cast("Configured", config.model_copy(update={"model": model}))


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
            f"model.adapter = '{folder}' does not fit the model ({reason_of(error)}): "
            "use the model that it was trained on, or leave model.adapter empty"
        ) from error
    # Dequantised: rounded to a few bits again, a small change would be lost.
    modules = [(name, module) for name, module in backbone.named_modules() if hasattr(module, "fuse")]
    if fused := [(name, module.fuse(dequantize=True)) for name, module in modules]:
        backbone.update_modules(tree_unflatten(fused))


def reason_of(error: BaseException) -> str:
    """Return the message of an exception in one line of at most 200 characters."""
    return shortened(one_line(error), 200)


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
