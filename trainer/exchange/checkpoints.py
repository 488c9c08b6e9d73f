"""Checkpoints in the format of transformers: a language model, or a sequence classifier with one label."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.utils import dequantize_model, make_shards

from trainer.files import read_json
from trainer.models.adapters import LoRA, Parameters, linear_places, only_adapter
from trainer.models.backbone import LoadedModel, ScalarHead
from trainer.models.forward import family_of
from trainer.models.peft_adapters import CLASSIFIER, Part, check_names

_HEADS = ("lm_head.",)
_QUANTIZED = ("quantization", "quantization_config", "torch_dtype")  # of config.json, no longer true
_CAUSAL, _SEQUENCE = "ForCausalLM", "ForSequenceClassification"
NO_LAYERS: Mapping[str, LoRA] = MappingProxyType({})


def write_model(
    folder: Path, loaded: LoadedModel, layers: Mapping[str, LoRA] = NO_LAYERS, head: ScalarHead | None = None
) -> None:
    """Write the backbone of `loaded`, unpacked if it is quantised, for transformers, with `layers` folded in.

    It is a language model or, with `head`, a sequence classifier. Its score is head.weight . h / head.std, read at the
    last token that is no end token. The constant that a head without a bias cannot hold, -mean / std, is in config.json
    in OpenRLHF's form, `mean` with `std` = 1. Raises ModelError for a family whose weights have other names there, or
    that has no classifier.
    """
    weights, about = _weights(loaded.backbone, layers, "weights" if head is None else "classifier"), dict[str, Any]()
    if head is not None:
        weights = {name: array for name, array in weights.items() if not name.startswith(_HEADS)}
        weights[f"{CLASSIFIER}.weight"] = (head.weight / head.std)[None]
        about = {
            "num_labels": 1,
            "id2label": {"0": "LABEL_0"},
            "label2id": {"LABEL_0": 0},
            "pad_token_id": loaded.tokenizer.eos_token_id,  # so that the end token is not read
            "mean": head.mean / head.std,
            "std": 1.0,
        }
    folder.mkdir(parents=True, exist_ok=True)
    shards = make_shards(weights)
    index: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = "model.safetensors" if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        mx.save_safetensors(str(folder / name), shard, metadata={"format": "pt"})
        index |= dict.fromkeys(shard, name)
    if len(shards) > 1:
        total = {"total_size": sum(array.nbytes for array in weights.values())}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": total, "weight_map": index}))
    config = read_json(loaded.folder / "config.json")
    config = {key: value for key, value in config.items() if key not in _QUANTIZED} | about
    config["dtype"] = str(loaded.dtype).rpartition(".")[2]
    if about:
        config["architectures"] = [one.replace(_CAUSAL, _SEQUENCE) for one in config.get("architectures") or ()]
    if not config.get("architectures"):
        config.pop("architectures", None)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    loaded.tokenizer._tokenizer.save_pretrained(folder)


def _weights(backbone: nn.Module, layers: Mapping[str, LoRA], part: Part) -> Parameters:
    """Return all weights of `backbone` with the adapter `layers` folded in, by their names in transformers."""
    names = check_names(family_of(backbone), part)
    fused: dict[str, Any] = {name: layer.fuse(dequantize=True) for name, layer in layers.items()}
    with only_adapter(linear_places(backbone), fused):
        dequantize_model(backbone)  # on a GPU, where weights are held packed
        arrays = cast(list[tuple[str, mx.array]], tree_flatten(backbone.parameters()))
        return {names.to_transformers(name): array for name, array in arrays}
