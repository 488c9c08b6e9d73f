"""Limit of the memory that MLX may take: the estimate before a run, and smaller parts for what does not fit."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeVar

import mlx.core as mx
import psutil

from trainer.arrays import on_cpu
from trainer.config import AnyConfig, Config
from trainer.config.schema import BackboneConfig
from trainer.errors import OutOfMemoryError
from trainer.events import Phase
from trainer.memory.estimate import changed, footprint_of
from trainer.memory.shape import shape_of

_OF_A_CPU = 0.8  # share of the machine's memory
_CACHED = 4  # freed buffers are kept up to this part of the limit
_SIGNS = (  # in the messages of MLX's allocators, on Metal, CUDA and a CPU
    "out of memory",
    "insufficient memory",
    "unable to allocate",
    "attempting to allocate",
    "malloc",
)
_ADVICE = (
    "set optim.grad_checkpoint = true, use shorter prompts and responses, or a smaller or quantised model; "
    "`ppo-workbench estimate` names a setting that fits"
)
_WITHIN = 1.15
"""Ratio within which the estimate is: what is above the limit by less is tried."""
REFUSED = 2**62
"""Peak of a part of which an allocation failed: more bytes than any device has."""

Result = TypeVar("Result")
Part = Literal["rollout.slots", "optim.micro_batch_tokens"]


class Smaller(NamedTuple):
    """Setting that makes the parts of a run smaller, with its new value, and a line that says why."""

    key: Part
    value: int
    line: str


def set_memory_limit(config: BackboneConfig) -> int:
    """Set MLX's limits for the run, and return the bytes that it may take.

    At the limit, MLX gives freed buffers back; on a Mac, memory stays wired up to it. MLX goes beyond it while the
    device has more, so a run compares its peaks with it as well.
    """
    info = mx.device_info()
    device = int(info.get("max_recommended_working_set_size", 0))  # of Metal
    if not device and on_cpu():
        device = int(psutil.virtual_memory().total * _OF_A_CPU)
    before = mx.set_memory_limit(device or 2**60)
    device = device or before  # MLX's default for CUDA is nearly all of the GPU's memory
    limit = min(round(config.memory_limit * 1e9) or device, device)
    mx.set_memory_limit(limit)
    if not on_cpu():  # on a CPU, MLX keeps next to nothing
        mx.set_cache_limit(limit // _CACHED)
    if mx.metal.is_available():
        mx.set_wired_limit(limit)
    return limit


def until_it_fits(work: Callable[[], Result], make_smaller: Callable[[], None]) -> Result:
    """Return the result of `work`, and repeat it after `make_smaller` as often as an allocation fails."""
    while True:
        try:
            return work()
        except (RuntimeError, MemoryError) as error:
            text = str(error).lower()
            if not isinstance(error, MemoryError) and not any(sign in text for sign in _SIGNS):
                raise
        free_memory()  # only here: until its end, the exception holds the arrays of the computation that failed
        make_smaller()


def free_memory() -> None:
    """Free the arrays of computations that have ended, and the buffers that MLX keeps."""
    gc.collect()
    mx.clear_cache()


def smaller_parts(config: AnyConfig, phase: Phase, peak: int, widest: int, limit: int) -> list[Smaller]:
    """Return the changes that halve the largest parts of a phase. An evaluation of PPO generates and scores.

    peak: of the phase, bytes; `REFUSED` if an allocation failed. widest: tokens of the longest sequence, or of the
    widest comparison; limit: bytes. Raises OutOfMemoryError if the parts are single sequences already.
    """
    changes: list[Smaller] = []
    needs = "an allocation failed" if peak == REFUSED else f"{_gigabytes(peak)} are more than {_gigabytes(limit)}"
    why = f"{needs} in the phase '{phase}'"
    batch = config.rollout.batch_size if isinstance(config, Config) else config.train.batch_size
    if isinstance(config, Config) and phase in ("generate", "evaluate") and (slots := config.rollout.slots) > 1:
        value = min(slots, batch) // 2
        if value:
            changes.append(Smaller("rollout.slots", value, f"rollout.slots lowered from {slots} to {value}: {why}"))
    old = config.optim.micro_batch_tokens
    tokens = min(old, widest * batch)
    if phase != "generate" and tokens >= 2 * widest:
        line = f"optim.micro_batch_tokens lowered from {old} to {tokens // 2}: {why}"
        changes.append(Smaller("optim.micro_batch_tokens", tokens // 2, line))
    if not changes:
        raise OutOfMemoryError(
            f"the phase '{phase}' does not fit {_gigabytes(limit)} with a single sequence at a time: {_ADVICE}"
        )
    return changes


def fit(config: AnyConfig, longest: int, widest: int, limit: int) -> list[Smaller]:
    """Return the changes with which a run fits `limit`, bytes, by its estimate.

    longest: as for `footprint`; widest: as for `smaller_parts`. Nothing is changed if the model's size is not known.
    Raises OutOfMemoryError if the smallest parts do not fit.
    """
    shape, _ = shape_of(config.model.path)
    changes = list[Smaller]()
    while shape is not None:
        memory = footprint_of(config, shape, longest, gpu=not on_cpu())
        if memory.peak <= limit:
            break
        try:
            smaller = smaller_parts(config, memory.phase, memory.peak, widest, limit)
        except OutOfMemoryError:
            if memory.peak > _WITHIN * limit:
                raise
            break
        for change in smaller:
            config = changed(config, change.key, change.value)
        changes += smaller
    return changes


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
