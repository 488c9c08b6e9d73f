"""Shape of a decoder, read from its config.json: what its weights, caches and activations are counted from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from trainer.files import read_json

STARTER = {  # SmolLM2-135M, so that it is known before it is converted
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}


class ModelShape(NamedTuple):
    """Sizes of a decoder."""

    hidden: int
    inner: int  # inner size of what a token passes in an MLP, or in its experts together
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    experts: int  # of a block, to choose from; 1 without a mixture of experts
    routes: int  # experts that a token passes; 1 without a mixture
    expert_inner: int  # inner size of one expert
    tied: bool  # the head is the embedding
    gelu: bool  # the MLP is gated by GELU, whose parts the backward pass needs; else by SiLU
    packed: tuple[int, int] | None  # bits of a weight and weights of a group, if the weights are quantised

    @property
    def parameters(self) -> int:
        """Number of weights, without vectors."""
        attention = self.hidden * self.head_size * 2 * (self.heads + self.kv_heads)
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        inner = self.experts * self.expert_inner + self.shared_inner
        return self.layers * (attention + 3 * self.hidden * inner) + embeddings

    @property
    def shared_inner(self) -> int:
        """Inner size of the experts that every token passes; 0 without such, and without a mixture."""
        return self.inner - self.routes * self.expert_inner


def qwen3(hidden: int, inner: int, layers: int, heads: int, *, tied: bool = False) -> dict[str, Any]:
    """Return what config.json says of a Qwen3 model of that shape."""
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "tie_word_embeddings": tied,
    }


SIZES = {  # ascending: the starter model, then Qwen3
    "135M": STARTER,
    "0.6B": qwen3(1024, 3072, 28, 16, tied=True),
    "1.7B": qwen3(2048, 6144, 28, 16, tied=True),
    "4B": qwen3(2560, 9728, 36, 32, tied=True),
    "8B": qwen3(4096, 12288, 36, 32),
    "14B": qwen3(5120, 17408, 40, 40),
    "32B": qwen3(5120, 25600, 64, 64),
}


_OF_PRESETS: dict[str, dict[str, Any]] = {  # by model.path: presets are estimated before their model is downloaded
    "mlx-community/Qwen3-0.6B-bf16": SIZES["0.6B"],
    "mlx-community/Qwen3-1.7B-bf16": SIZES["1.7B"],
    "mlx-community/Qwen3-8B-4bit": SIZES["8B"] | {"quantization": {"bits": 4, "group_size": 64}},
}


def shape_of(path: str) -> tuple[ModelShape | None, str]:
    """Return the shape of the model at `path`, as in `model.path`, or None and why it is not known. Reads files."""
    if path == "starter":
        return decoder_shape(STARTER), ""
    folder = folder_of(path)
    if folder is None:
        if path in _OF_PRESETS:
            return decoder_shape(_OF_PRESETS[path]), ""
        return None, "the model is not downloaded, so its size is unknown"
    try:
        settings = read_json(folder / "config.json")
        return decoder_shape({**settings, **(settings.get("text_config") or {})}), ""
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None, "the model's config.json does not state its size"


def decoder_shape(settings: dict[str, Any]) -> ModelShape:
    """Return the shape in a config.json. Raises KeyError, TypeError, ValueError or OverflowError if it has none."""
    hidden, heads = int(settings["hidden_size"]), int(settings["num_attention_heads"])
    experts, routes, each, shared = _inner_sizes(settings)
    packed = settings.get("quantization") or {}
    is_gemma = str(settings.get("model_type", "")).startswith("gemma")
    shape = ModelShape(
        hidden=hidden,
        inner=routes * each + shared,
        layers=int(settings["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(settings.get("num_key_value_heads") or heads),
        head_size=int(settings.get("head_dim") or hidden // max(heads, 1)),
        vocabulary=int(settings["vocab_size"]),
        experts=experts,
        routes=routes,
        expert_inner=each,
        tied=bool(settings.get("tie_word_embeddings", is_gemma)),
        gelu=is_gemma or "gelu" in str(settings.get("hidden_act", "")),
        packed=(int(packed["bits"]), int(packed["group_size"])) if packed else None,
    )
    sizes = [value for value in shape if type(value) is int]  # not the booleans
    if not all(0 < size < 2**31 for size in (*sizes, *(shape.packed or ()))):
        raise ValueError("not the sizes of a model")
    return shape


def folder_of(path: str) -> Path | None:
    """Find a local folder, or the newest snapshot of a hub model in the hub's cache; None if there is none."""
    try:
        local = Path(path).expanduser()
        if local.is_dir():
            return local
        home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
        cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
        snapshots = (cache / f"models--{path.replace('/', '--')}" / "snapshots").glob("*/config.json")
        return max(snapshots, key=lambda file: file.stat().st_mtime).parent
    except (OSError, ValueError, RuntimeError):
        return None


def _inner_sizes(settings: dict[str, Any]) -> tuple[int, int, int, int]:
    """Return the number of experts, how many a token passes, the inner size of each, and that of the shared ones.

    A model without a mixture has one expert, its MLP. Raises KeyError for experts under other names, such as
    DeepSeek's, whose attention has another shape as well.
    """
    count = int(settings.get("num_experts") or settings.get("num_local_experts") or 0)
    if not count:
        if settings.get("n_routed_experts") or settings.get("moe_num_experts"):
            raise KeyError("num_experts")
        return 1, 1, int(settings["intermediate_size"]), 0
    each = int(settings.get("moe_intermediate_size") or settings["intermediate_size"])
    return count, int(settings["num_experts_per_tok"]), each, int(settings.get("shared_expert_intermediate_size") or 0)
