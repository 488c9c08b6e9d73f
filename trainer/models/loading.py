"""From `model.path` to a backbone and a tokenizer, by mlx-lm's own loader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

from trainer.arrays import leaves
from trainer.config.schema import ModelConfig
from trainer.errors import ModelError
from trainer.models.adapters import fuse_adapter
from trainer.models.cpu import use_vector_swiglu
from trainer.models.starter import starter_model


class LoadedModel(NamedTuple):
    """A backbone with its tokenizer, and what was found out about it."""

    backbone: nn.Module
    tokenizer: Any  # mlx_lm's TokenizerWrapper
    folder: Path
    dtype: mx.Dtype
    context: int  # longest sequence the model was made for, in tokens; 0 when its configuration does not say


def load_backbone(config: ModelConfig) -> LoadedModel:
    """Load weights (safetensors only) and tokenizer; code that comes with a model is never executed.

    Must run on the thread that will train. Raises ModelError for a folder that is not there, is damaged, holds a
    family that mlx-lm does not know, or cannot be fetched from the hub.
    """
    import mlx_lm.utils  # 2.8 s

    folder = model_folder(config)
    try:
        backbone, settings = mlx_lm.utils.load_model(folder, lazy=True)
        tokenizer = mlx_lm.utils.load_tokenizer(folder, eos_token_ids=settings.get("eos_token_id"))
    except FileNotFoundError as error:
        raise ModelError(f"model.path = '{config.path}': {folder} is not a model folder: {_line(error)}") from error
    except (ValueError, KeyError, TypeError, RuntimeError, OSError, AttributeError) as error:
        raise ModelError(f"model.path = '{config.path}' cannot be loaded: {_line(error)}") from error
    except Exception as error:  # the tokenizers library raises bare Exception for a damaged tokenizer.json
        raise ModelError(f"model.path = '{config.path}': its tokenizer cannot be loaded: {_line(error)}") from error
    if not tokenizer.eos_token_ids:
        raise ModelError(f"model.path = '{config.path}': its tokenizer has no end token, so no response could end")
    if config.adapter:
        fuse_adapter(backbone, Path(config.adapter))
    dtype = _cast(backbone, config.dtype)
    if mx.default_device() == mx.Device(mx.cpu):
        use_vector_swiglu(backbone)
    try:
        mx.eval(backbone)
    except (RuntimeError, ValueError) as error:  # a safetensors file cut short shows only when it is read
        raise ModelError(f"model.path = '{config.path}' cannot be read: {_line(error)}") from error
    text = settings.get("text_config") or {}
    context = settings.get("max_position_embeddings") or text.get("max_position_embeddings") or 0
    return LoadedModel(backbone, tokenizer, folder, dtype, int(context))


def model_folder(config: ModelConfig) -> Path:
    """The local folder of `model.path`: the starter's, a folder as named, or a hub snapshot (fetched when absent)."""
    if config.path == "starter":
        return starter_model()
    path = Path(config.path).expanduser()
    if path.is_dir():
        for name in ("config.json", "tokenizer_config.json"):
            if not (path / name).is_file():
                raise ModelError(f"model.path = '{config.path}' has no {name}: it is not a model folder of mlx-lm")
        _check_json(path)
        return path
    if path.exists():
        raise ModelError(f"model.path = '{config.path}' is a file: name the folder of the model")
    if config.path.count("/") != 1 or config.path.startswith((".", "/", "~")):
        raise ModelError(
            f"model.path = '{config.path}': no such folder; use 'starter', an existing folder, or a hub name like "
            "mlx-community/Qwen3-0.6B-bf16"
        )
    return _hub_snapshot(config)


def _hub_snapshot(config: ModelConfig) -> Path:
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "model*.safetensors", "tokenizer.model", "*.tiktoken", "*.txt", "*.jinja"]  # never *.py
    try:
        return Path(snapshot_download(config.path, revision=config.revision or None, allow_patterns=patterns))
    except Exception as error:  # the hub client raises a dozen unrelated types: not found, gated, offline, no space
        raise ModelError(
            f"model.path = '{config.path}' could not be fetched from the hub ({type(error).__name__}): check the name "
            "and the connection, or give the path of a local folder"
        ) from error


def _check_json(folder: Path) -> None:
    for name in ("config.json", "tokenizer_config.json", "tokenizer.json"):
        try:
            if (folder / name).is_file():
                json.loads((folder / name).read_bytes())
        except ValueError as error:
            raise ModelError(f"{folder / name} is not JSON ({_line(error)}): fetch the model again") from error


def _cast(backbone: nn.Module, wanted: str) -> mx.Dtype:
    """Bring the weights to the wanted precision; on the CPU, quantised ones too are held in float32."""
    on_gpu = mx.default_device() == mx.Device(mx.gpu)
    dtype = {
        "auto": mx.bfloat16 if on_gpu else mx.float32,
        "float32": mx.float32,
        "bfloat16": mx.bfloat16,
        "float16": mx.float16,
    }[wanted]
    if not on_gpu and any(isinstance(module, nn.QuantizedLinear) for module in backbone.modules()):
        from mlx_lm.utils import dequantize_model

        dequantize_model(backbone)  # 4- and 8-bit products are scalar code there: 1 to 3 GFLOP/s against 125
    quantized = {
        id(leaf)
        for module in backbone.modules()
        if isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding)
        for leaf in leaves(module.parameters())
    }

    def cast(leaf: mx.array) -> mx.array:
        floating = mx.issubdtype(leaf.dtype, mx.floating)
        return leaf.astype(dtype) if floating and id(leaf) not in quantized else leaf

    backbone.update(tree_map(cast, backbone.parameters()))
    return dtype


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
