"""Memory of a run by part and phase, from its configuration and the shape of its model."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from trainer.config.schema import Config
from trainer.memory.shape import ModelShape

Part = Literal["weights", "adapters", "optimiser", "KV cache", "activations", "logits", "gradients", "reward model"]
MemoryPhase = Literal["generate", "score", "update"]

_WIDTHS = {"float32": 4, "bfloat16": 2}  # bytes
CHUNK = 128
"""Positions whose logits exist at once on a CPU; see `models.vocabulary`, which imports MLX."""
PREFILL_TOKENS = 4096
"""Tokens of prompts that are read together; see `rollout.decoding`, which imports MLX."""
_CACHE_STEP = 256  # positions by which mlx-lm's caches grow
_GRADIENTS = 3  # copies: the sum so far, the new ones, and what Adam writes
_DRAWN = 8  # arrays [slots, vocabulary] alive while a token is drawn
_SCORED = 5  # arrays [chunk, vocabulary] alive in scoring
_TRAINED = 9  # the same with a gradient
_AUTO = ("q_proj", "v_proj")  # what `auto` in model.lora_targets means in the common families


class Footprint(NamedTuple):
    """Bytes that MLX allocates at the peak of each phase, by part; parts of 0 bytes are left out."""

    phases: dict[MemoryPhase, dict[Part, int]]

    @property
    def phase(self) -> MemoryPhase:
        """Phase with the highest peak."""
        return max(self.phases, key=self.peak_of)

    @property
    def parts(self) -> dict[Part, int]:
        """Parts at the peak of the iteration."""
        return self.phases[self.phase]

    @property
    def peak(self) -> int:
        """Peak of the iteration."""
        return self.peak_of(self.phase)

    def peak_of(self, phase: MemoryPhase) -> int:
        """Return the peak of a phase."""
        return sum(self.phases[phase].values())


class Precision(NamedTuple):
    """Type and packing of a model's weights on a device."""

    dtype: str
    packed: tuple[int, int] | None  # bits of a weight and weights of a group, while they stay packed

    @property
    def name(self) -> str:
        """Words for it, as in `4 bits` and `float32`."""
        return f"{self.packed[0]} bits" if self.packed else self.dtype


def precision_of(config: Config, shape: ModelShape, *, gpu: bool) -> Precision:
    """Return how a run holds the weights. A CPU unpacks quantised weights, and holds experts in float32."""
    dtype = config.model.dtype
    if dtype == "auto":
        dtype = "bfloat16" if gpu else "float32"
    if not gpu and shape.has_experts:
        dtype = "float32"
    wanted = config.model.quantize
    chosen = None if wanted == "off" else (int(wanted.removesuffix("-bit")), 64)
    return Precision(dtype, shape.packed or chosen if gpu else None)


def footprint(config: Config, shape: ModelShape, prompt: int, *, gpu: bool, reward_models: int = 0) -> Footprint:
    """Estimate the memory of an iteration.

    The factors of logits, activations and gradients are fitted to measurements on a CPU; see docs/memory.md.

    prompt: tokens of the longest prompt. gpu: whether it runs on one. reward_models: bytes of their weights.
    """
    precision = precision_of(config, shape, gpu=gpu)
    width = _WIDTHS[precision.dtype]
    adapters = _adapter_parameters(config, shape)
    held: dict[Part, int] = {
        "weights": weights_bytes(shape, precision),
        "adapters": 4 * adapters * (2 if config.optim.ema_decay else 1),  # float32, and their moving average
        "optimiser": 2 * 4 * adapters,  # two moments
        "reward model": reward_models,
    }
    length = prompt + config.rollout.max_new_tokens
    phases: dict[MemoryPhase, dict[Part, int]] = {
        "generate": held | _generating(config, shape, prompt, width, gpu=gpu),
        "score": held | _scoring(config, shape, length, width, gpu=gpu),
        "update": held | _updating(config, shape, length, width, gpu=gpu) | {"gradients": _GRADIENTS * 4 * adapters},
    }
    return Footprint({name: {part: size for part, size in parts.items() if size} for name, parts in phases.items()})


def weights_bytes(shape: ModelShape, precision: Precision) -> int:
    """Return the bytes of a model's weights, without vectors."""
    if precision.packed is None:
        return shape.parameters * _WIDTHS[precision.dtype]
    bits, group = precision.packed
    return math.ceil(shape.parameters * (bits / 8 + 4 / group))  # a group has a scale and a bias of 16 bits each


def _adapter_parameters(config: Config, shape: ModelShape) -> int:
    """Return the number of weights of all adapters and of the critic's head."""
    targets = {one for target in config.model.lora_targets for one in (_AUTO if target == "auto" else (target,))}
    sizes = shape.linear_sizes()
    layers = min(config.model.lora_layers or shape.layers, shape.layers)
    rank = config.model.lora_rank * sum(sum(sizes.get(target, (0, 0))) for target in targets)
    critics = config.ppo.estimator == "gae" and config.model.value_model == "adapter"
    return layers * rank * (2 if critics else 1) + shape.hidden


def _generating(config: Config, shape: ModelShape, prompt: int, width: int, *, gpu: bool) -> dict[Part, int]:
    """Return keys and values of all slots, and the larger of the prompts' forward pass and the drawing of a token."""
    slots = min(config.rollout.slots, config.rollout.batch_size)
    positions = -(-(prompt + config.rollout.max_new_tokens) // _CACHE_STEP) * _CACHE_STEP
    cache = slots * positions * 2 * shape.layers * shape.kv_heads * shape.head_size * width
    together = max(min(slots * prompt, PREFILL_TOKENS), prompt)
    passed = together * _block(shape, prompt, gpu=gpu) * width
    drawn = _DRAWN * slots * shape.vocabulary * 4
    return {"KV cache": cache, "activations": passed if passed > drawn else 0, "logits": 0 if passed > drawn else drawn}


def _scoring(config: Config, shape: ModelShape, length: int, width: int, *, gpu: bool) -> dict[Part, int]:
    """Return what a forward pass over a micro-batch takes."""
    rows = _rows(config.rollout.batch_size, length, config)
    logits = _SCORED * _chunk(config, rows, gpu=gpu) * shape.vocabulary * 4
    return {"activations": rows * length * _block(shape, length, gpu=gpu) * width, "logits": logits}


def _block(shape: ModelShape, length: int, *, gpu: bool) -> int:
    """Return how many numbers a token needs in a forward pass: one block at a time, attention or MLP."""
    attention = 4 * shape.heads * shape.head_size + (0 if gpu else 2 * shape.heads * length)
    return 3 * shape.hidden + max(attention, 3 * shape.inner)


def _updating(config: Config, shape: ModelShape, length: int, width: int, *, gpu: bool) -> dict[Part, int]:
    """Return what a micro-batch keeps of all blocks for its backward pass."""
    rows = _rows(config.rollout.batch_size // config.ppo.minibatches, length, config)
    attention = (2 * shape.heads + 3 * shape.kv_heads) * shape.head_size + shape.heads * length
    block = 7 * (shape.hidden + shape.inner) if shape.gelu else 4 * shape.hidden + 3 * shape.inner
    routed = 2 * shape.routes * shape.hidden if shape.has_experts else 0  # each expert has its own copy of the state
    kept = shape.layers * (attention + block + routed)
    return {
        "activations": rows * length * kept * width,
        "logits": _TRAINED * _chunk(config, rows, gpu=gpu) * shape.vocabulary * 4,
    }


def _rows(batch: int, length: int, config: Config) -> int:
    """Return the sequences of a micro-batch."""
    return max(1, min(batch, config.optim.micro_batch_tokens // length))


def _chunk(config: Config, rows: int, *, gpu: bool) -> int:
    """Return the positions whose logits exist at once."""
    return min(rows * config.rollout.max_new_tokens, 2 * CHUNK if gpu else CHUNK)
