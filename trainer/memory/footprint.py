"""Memory of a run by part and phase, from its configuration and the shape of its model."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from trainer.config.schema import Config
from trainer.memory.shape import ModelShape

Part = Literal["weights", "adapters", "optimiser", "KV cache", "activations", "logits", "gradients"]
MemoryPhase = Literal["generate", "score", "update"]

_WIDTHS = {"float32": 4, "bfloat16": 2}  # bytes
CHUNK = 128
"""Positions whose logits exist at once on a CPU; see `models.vocabulary`, which imports MLX."""
_CACHE_STEP = 256  # positions by which mlx-lm's caches grow
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
    """How the weights of a model are held on a device."""

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


def footprint(config: Config, shape: ModelShape, prompt: int, *, gpu: bool) -> Footprint:
    """Estimate the memory of an iteration. prompt: tokens of the longest prompt. gpu: whether it runs on one."""
    precision = precision_of(config, shape, gpu=gpu)
    width = _WIDTHS[precision.dtype]
    adapters = _adapter_parameters(config, shape)
    held: dict[Part, int] = {
        "weights": _weights(shape, precision, width),
        "adapters": 4 * adapters * (2 if config.optim.ema_decay else 1),  # float32, and their moving average
        "optimiser": 2 * 4 * adapters,  # two moments
    }
    length = prompt + config.rollout.max_new_tokens
    phases: dict[MemoryPhase, dict[Part, int]] = {
        "generate": held | _generating(config, shape, length, width),
        "score": held | _scoring(config, shape, length, width, gpu=gpu),
        "update": held | _updating(config, shape, length, width, gpu=gpu) | {"gradients": _GRADIENTS * 4 * adapters},
    }
    return Footprint({name: {part: size for part, size in parts.items() if size} for name, parts in phases.items()})


_GRADIENTS = 3  # copies: the sum so far, the new ones, and what Adam writes
_DRAWN = 8  # arrays [slots, vocabulary] alive while a token is drawn
_SCORED = 4  # arrays [chunk, vocabulary] alive in scoring
_TRAINED = 7  # the same with a gradient


def _weights(shape: ModelShape, precision: Precision, width: int) -> int:
    if precision.packed is None:
        return shape.parameters * width
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


def _generating(config: Config, shape: ModelShape, length: int, width: int) -> dict[Part, int]:
    """Return keys and values of all slots, and what the drawing of a token takes."""
    slots = min(config.rollout.slots, config.rollout.batch_size)
    positions = -(-length // _CACHE_STEP) * _CACHE_STEP
    cache = slots * positions * 2 * shape.layers * shape.kv_heads * shape.head_size * width
    return {"KV cache": cache, "logits": _DRAWN * slots * shape.vocabulary * 4}


def _scoring(config: Config, shape: ModelShape, length: int, width: int, *, gpu: bool) -> dict[Part, int]:
    """Return what a forward pass over a micro-batch takes: of one block at a time."""
    rows = _rows(config.rollout.batch_size, length, config)
    attention = 4 * shape.heads * shape.head_size + (0 if gpu else 2 * shape.heads * length)
    block = 3 * shape.hidden + max(attention, 3 * shape.inner)
    return {
        "activations": rows * length * block * width,
        "logits": _SCORED * _chunk(config, rows, gpu=gpu) * shape.vocabulary * 4,
    }


def _updating(config: Config, shape: ModelShape, length: int, width: int, *, gpu: bool) -> dict[Part, int]:
    """Return what a micro-batch keeps of all blocks for its backward pass."""
    rows = _rows(config.rollout.batch_size // config.ppo.minibatches, length, config)
    attention = (2 * shape.heads + 3 * shape.kv_heads) * shape.head_size + shape.heads * length
    kept = shape.layers * (4 * shape.hidden + attention + 3 * shape.inner)
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
