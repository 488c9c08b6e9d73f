"""Estimates of an iteration's tokens and memory from the configuration, before a model is loaded."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from trainer.config import PRESETS, Config
from trainer.files import open_regular, read_regular

_CHARACTERS_A_TOKEN = 4
_READ = 64 * 1024  # bytes of a prompt file that are read
_BYTES = {"float32": 4, "bfloat16": 2}
_STARTER = {  # SmolLM2-135M, so that the estimate works before it is converted
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}


def _qwen3(hidden: int, inner: int, layers: int, heads: int, *, tied: bool = False) -> dict[str, Any]:
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


_SIZES = {  # ascending
    "135M": _STARTER,
    "0.6B": _qwen3(1024, 3072, 28, 16, tied=True),
    "1.7B": _qwen3(2048, 6144, 28, 16, tied=True),
    "4B": _qwen3(2560, 9728, 36, 32, tied=True),
    "8B": _qwen3(4096, 12288, 36, 32),
    "14B": _qwen3(5120, 17408, 40, 40),
    "32B": _qwen3(5120, 25600, 64, 64),
}
_LOGITS_KEPT = 4  # arrays [tokens, vocabulary] alive at once in a step: logits, their gradient, log-probs, entropy


class Memory(NamedTuple):
    """Bytes that the tensors of an iteration take."""

    weights: int
    adapter: int
    """Weights of the adapters, with their gradients and the optimiser's two moments."""
    activations: int
    """Bytes that an update keeps for its backward pass; freed before the next rollout."""
    cache: int
    """Keys and values of a rollout; freed before the update."""

    @property
    def parts(self) -> tuple[int, int, int]:
        """Parts of the peak: the larger of activations and cache is the third."""
        return self.weights, self.adapter, max(self.activations, self.cache)

    @property
    def total(self) -> int:
        """Peak of the iteration."""
        return sum(self.parts)


class Estimate(NamedTuple):
    """Upper bounds of what one iteration needs; the memory is accurate to about 30%."""

    tokens_per_iteration: int
    """Tokens of the responses."""
    forward_tokens: int
    """Tokens, with prompts, that pass through a model: generated, scored by policy and reference, and trained on."""
    memory: Memory | None
    """Memory of the tensors; None if the model's size is not known."""
    basis: str
    """Short description of what the figures are based on."""

    @property
    def memory_bytes(self) -> int | None:
        """Peak memory of the tensors; None if the model's size is not known."""
        return self.memory and self.memory.total


class _Shape(NamedTuple):
    """Shape of a decoder, from which its weights and activations are counted."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    experts: int
    """Inner size of all experts of a block together, those included that a token does not pass; else of its MLP."""
    tied: bool
    packed: tuple[int, int] | None
    """Bits of a weight and weights of a group, if the weights are quantised."""

    @property
    def parameters(self) -> int:
        attention = self.hidden * self.head_size * 2 * (self.heads + self.kv_heads)
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.layers * (attention + 3 * self.hidden * self.experts) + embeddings

    def activations(self, length: int) -> int:
        """Return how many numbers each token of a sequence of `length` tokens stores for the backward pass."""
        attention = (2 * self.heads + 3 * self.kv_heads) * self.head_size + self.heads * length
        return self.layers * (5 * self.hidden + attention + 4 * self.inner)


def estimate(config: Config) -> Estimate:
    """Estimate the cost of one iteration. Reads only the model's config.json and the start of a prompt file."""
    rollout, ppo = config.rollout, config.ppo
    prompt = _prompt_tokens(config)
    length = prompt + rollout.max_new_tokens
    written = rollout.batch_size * rollout.max_new_tokens
    joint = config.model.value_model == "head"
    passes = 1 + (2 if joint else 3) + ppo.epochs * (1 if joint else 2)
    shape, why_not = _shape(config.model.path)
    basis = f"prompts of up to {prompt} tokens"
    if shape is None:
        return Estimate(written, rollout.batch_size * length * passes, None, f"{basis}; {why_not}")
    count, packed, dtype, memory = _weighed(config, shape, length)
    size = f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.0f}M"
    basis = f"{size} parameters in {f'{packed[0]} bits' if packed else dtype}, {basis}"
    return Estimate(written, rollout.batch_size * length * passes, memory, basis)


def largest_fitting(config: Config, room: int) -> str:
    """Return the size of the largest model that `config` could train in `room` bytes, as in `1.7B in float32`.

    Sizes are those of the starter model and of Qwen3. Empty if none fits. Reads the start of a prompt file.
    """
    length = _prompt_tokens(config) + config.rollout.max_new_tokens
    fitting = ""
    for name, shape in _SIZES.items():
        _, packed, dtype, memory = _weighed(config, _decoder(shape), length)
        if memory.total <= room:
            fitting = f"{name} in {f'{packed[0]} bits' if packed else dtype}"
    return fitting


def model_is_here(path: str) -> bool:
    """Return whether the model at `path`, a folder or a name on the hub, is on this machine."""
    return _folder(path) is not None


def _weighed(config: Config, shape: _Shape, length: int) -> tuple[int, tuple[int, int] | None, str, Memory]:
    """Return parameters, bits and group of packed weights, type of the others, and memory of an iteration."""
    dtype = config.model.dtype
    if dtype == "auto":
        dtype = "bfloat16" if _has_gpu() else "float32"
    if not _has_gpu() and shape.experts != shape.inner:
        dtype = "float32"  # as `held_precision` does
    width = _BYTES[dtype]
    packed, count = _packed(config, shape), shape.parameters
    # A group has a scale and a bias of 16 bits each.
    weights = math.ceil(count * (packed[0] / 8 + 4 / packed[1])) if packed else count * width
    return count, packed, dtype, _memory(config, shape, length, width, weights)


def _packed(config: Config, shape: _Shape) -> tuple[int, int] | None:
    """Return bits of a weight and weights of a group while they stay packed, or None: a CPU unpacks them."""
    wanted = config.model.quantize
    chosen = None if wanted == "off" else (int(wanted.removesuffix("-bit")), 64)
    return shape.packed or chosen if _has_gpu() else None


def _memory(config: Config, shape: _Shape, length: int, width: int, weights: int) -> Memory:
    """Return bytes of weights, optimiser, update activations and rollout key-value cache."""
    rollout, optim = config.rollout, config.optim
    layers_a_block = sum(2 if target == "auto" else 1 for target in config.model.lora_targets)
    adapter = layers_a_block * shape.layers * config.model.lora_rank * 2 * shape.hidden
    if config.model.value_model == "adapter":
        adapter *= 2
    rows = max(1, min(rollout.batch_size // config.ppo.minibatches, optim.micro_batch_tokens // length))
    logits = _LOGITS_KEPT * rows * rollout.max_new_tokens * shape.vocabulary * 4  # always float32
    update = rows * length * shape.activations(length) * width + logits
    slots = min(rollout.slots, rollout.batch_size)
    cache = slots * length * 2 * shape.layers * shape.kv_heads * shape.head_size * width
    return Memory(weights, adapter * 4 * 4, update, cache)  # adapter: weight, gradient and two moments


def _prompt_tokens(config: Config) -> int:
    """Estimate the longest prompt from the start of the file; the longest allowed if the file cannot be read."""
    name, allowed = config.data.prompts, config.data.max_prompt_tokens
    try:
        shipped = PRESETS / "prompts" / f"{name}.jsonl"
        path = shipped if shipped.parent == PRESETS / "prompts" and shipped.exists() else Path(name).expanduser()
        about = path.stat()
        longest = _longest_prompt(path, config.data.column, (about.st_mtime_ns, about.st_size))
    except (OSError, ValueError, RuntimeError):  # name too long or with a null byte, unknown home folder
        return allowed
    return min(longest or allowed, allowed)


@functools.lru_cache(maxsize=16)
def _longest_prompt(path: Path, column: str, stamp: tuple[int, int]) -> int:
    """Return the longest prompt in the first lines of a .txt or .jsonl file, in tokens; 0 if there is none.

    stamp: the file's modification time and size, so that the cache notices a change.
    """
    if path.suffix.lower() not in (".jsonl", ".txt"):
        return 0
    with open_regular(path) as file:
        lines = file.read(_READ).decode("utf-8", "replace").splitlines() or [""]
    if path.suffix.lower() == ".jsonl":
        lines = [_column(line, column) for line in lines]
    return math.ceil(max(map(len, lines)) / _CHARACTERS_A_TOKEN)


def _column(line: str, column: str) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    return str(row.get(column, "")) if isinstance(row, dict) else ""


def _shape(path: str) -> tuple[_Shape | None, str]:
    """Return the shape of the model at `path`, or None and why it is not known."""
    if path == "starter":
        return _decoder(_STARTER), ""
    folder = _folder(path)
    if folder is None:
        return None, "the model is not downloaded, so its size is unknown"
    try:
        settings = json.loads(read_regular(folder / "config.json"))
        return _decoder({**settings, **(settings.get("text_config") or {})}), ""
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None, "the model's config.json does not state its size"


def _decoder(settings: dict[str, Any]) -> _Shape:
    hidden, heads = int(settings["hidden_size"]), int(settings["num_attention_heads"])
    inner, experts = _inner_sizes(settings)
    packed = settings.get("quantization") or {}
    shape = _Shape(
        hidden=hidden,
        inner=inner,
        layers=int(settings["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(settings.get("num_key_value_heads") or heads),
        head_size=int(settings.get("head_dim") or hidden // max(heads, 1)),
        vocabulary=int(settings["vocab_size"]),
        experts=experts,
        tied=bool(settings.get("tie_word_embeddings", False)),
        packed=(int(packed["bits"]), int(packed["group_size"])) if packed else None,
    )
    if not all(0 < size < 2**31 for size in (*shape[:-2], *(shape.packed or ()))):
        raise ValueError("not the sizes of a model")
    return shape


def _inner_sizes(settings: dict[str, Any]) -> tuple[int, int]:
    """Return the inner size that a token passes, and that of all experts together; equal without experts.

    Raises KeyError for experts under other names, such as DeepSeek's, whose attention has another shape as well.
    """
    count = int(settings.get("num_experts") or settings.get("num_local_experts") or 0)
    if not count:
        if settings.get("n_routed_experts") or settings.get("moe_num_experts"):
            raise KeyError("num_experts")
        return (inner := int(settings["intermediate_size"])), inner
    each = int(settings.get("moe_intermediate_size") or settings["intermediate_size"])
    shared = int(settings.get("shared_expert_intermediate_size") or 0)
    return int(settings["num_experts_per_tok"]) * each + shared, count * each + shared


def _folder(path: str) -> Path | None:
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


@functools.cache
def _has_gpu() -> bool:
    """Return whether MLX is installed with GPU support, without loading MLX."""
    if sys.platform == "darwin":
        return True
    for name in ("mlx-cuda-13", "mlx-cuda-12", "mlx-cuda"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            metadata.distribution(name)
            return True
    return False
