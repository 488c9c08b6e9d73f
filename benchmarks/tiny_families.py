"""Tiny random models of every family in mlx-lm, built from the values in family_values.py."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
from pathlib import Path
from typing import Any

import trainer  # noqa: F401  loads the BLAS, before anything imports mlx

# isort: split
import mlx.core as mx
import mlx.nn as nn
import mlx_lm.models
from family_values import FIELDS, OWN, TEXT, VOCABULARY
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.utils import MODEL_REMAPPING, _get_classes

from trainer.models.backbone import quantize_backbone

END = 256
_LARGEST = 8_000_000  # parameters; a field without a value here keeps its default, which may be a real model's


def families() -> list[str]:
    """Return the families: the modules of mlx-lm that have a model and its arguments, without importing any."""
    folder = Path(mlx_lm.models.__path__[0])
    return sorted((path.stem for path in folder.glob("*.py") if {"Model", "ModelArgs"} <= _names(path)), key=str.lower)


def tiny_config(family: str) -> dict[str, Any]:
    """Return the config.json of a tiny model of `family`, or of another model_type that mlx-lm loads as a family.

    Raises KeyError for a field without a value.
    """
    config: dict[str, Any] = {"model_type": family, "eos_token_id": END}
    family = MODEL_REMAPPING.get(family, family)
    if family not in TEXT:
        return config | _fields(family, "ModelArgs", OWN.get(family, {}))
    module, name = TEXT[family]
    text = {"model_type": module} | _fields(module, name, _text_values(family, module))
    outer = OWN[family] if family == "prism_hadamard_qwen35" else {}
    return config | outer | {"text_config": text, "vocab_size": VOCABULARY}


def tiny_backbone(family: str, dtype: mx.Dtype, *, bits: int = 0, seed: int = 0) -> nn.Module:
    """Build a tiny random model of `family`, its weights of type `dtype`, then quantised to `bits` bits unless 0.

    Raises ValueError if it has more than 8 million parameters.
    """
    config = tiny_config(family)
    model_class, arguments = _get_classes(config)
    mx.random.seed(seed)  # vectors keep what their layers draw
    backbone: nn.Module = model_class(arguments.from_dict(config))
    parameters = tree_flatten(backbone.parameters())
    if (size := sum(array.size for _, array in parameters)) > _LARGEST:
        raise ValueError(f"{family} has {size} parameters: give its fields smaller values")
    key = mx.random.key(seed)
    weights = []
    for name, array in parameters:
        key, draw = mx.random.split(key)
        weights.append((name, _random(name, array, draw, dtype)))
    backbone.update(tree_unflatten(weights))
    if bits:
        quantize_backbone(backbone, bits)
    mx.eval(backbone.parameters())
    return backbone


def _text_values(family: str, module: str) -> dict[str, Any]:
    """Return the values of a wrapping family's text model that take precedence over FIELDS."""
    if family == "prism_hadamard_qwen35":
        return {"num_experts": 0, "hidden_size": 128}
    if family == "qwen3_5_moe":
        return {"num_experts": 4}
    return OWN.get(family, OWN.get(module, {}))


def _names(path: Path) -> set[str]:
    """Return the names that the module at `path` defines or imports."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    defined = {node.name for node in body if isinstance(node, ast.ClassDef)}
    return defined | {alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}


def _module(name: str) -> Any:
    return importlib.import_module(f"mlx_lm.models.{name}")


def _fields(module: str, name: str, own: dict[str, Any]) -> dict[str, Any]:
    """Return values for the fields of class `name` of `module`: those in `own`, then those in FIELDS."""
    values = dict(own)
    for field in dataclasses.fields(getattr(_module(module), name)):
        if field.name in values or field.name == "model_type":
            continue
        optional = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if field.name in FIELDS:
            values[field.name] = FIELDS[field.name]
        elif not optional:
            raise KeyError(f"{module}.{name} needs a value for {field.name}")
    return values


def _random(name: str, array: mx.array, key: mx.array, dtype: mx.Dtype) -> mx.array:
    """Return random weights in the shape of `array`: matrices scaled by their inputs, others with some noise added."""
    if not mx.issubdtype(array.dtype, mx.floating):  # packed weights
        return mx.random.randint(0, 256, array.shape, key=key).astype(array.dtype) if array.ndim > 1 else array
    noise = mx.random.normal(array.shape, key=key)
    if name.endswith(("quant_key_scale", "quant_value_scale")):
        return mx.full(array.shape, 0.03, dtype)
    if array.ndim < 2 or re.search(r"(A_log|\.D|dt_bias)$", name):
        return (array + 0.05 * noise).astype(dtype)
    inputs = array[0].size if "conv" in name else array.shape[-1]
    return (noise * (1.5 * inputs**-0.5)).astype(dtype)
