"""Limit of the memory that MLX may take, and smaller parts for what does not fit."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeVar

import mlx.core as mx
import psutil

from trainer.config import AnyConfig
from trainer.config.schema import BackboneConfig, RolloutConfig
from trainer.errors import OutOfMemoryError
from trainer.events import Phase

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
    "`ppo-workbench estimate` lists what would fit"
)
REFUSED = 2**62
"""Peak of a part of which an allocation failed: more bytes than any device has."""

Result = TypeVar("Result")
Part = Literal["rollout.slots", "optim.micro_batch_tokens"]


class Smaller(NamedTuple):
    """Setting that makes the parts of a run smaller, with its new value."""

    key: Part
    value: int


def set_memory_limit(config: BackboneConfig) -> int:
    """Set MLX's limits for the run, and return the bytes that it may take.

    At the limit, MLX gives freed buffers back; on a Mac, memory stays wired up to it. MLX goes beyond it while the
    device has more, so a run compares its peaks with it as well.
    """
    info = mx.device_info()
    device = int(info.get("max_recommended_working_set_size", 0))  # of Metal
    if not device and not is_on_gpu():
        device = int(psutil.virtual_memory().total * _OF_A_CPU)
    before = mx.set_memory_limit(device or 2**60)
    device = device or before  # MLX's default for CUDA is nearly all of the GPU's memory
    limit = min(round(config.memory_limit * 1e9) or device, device)
    mx.set_memory_limit(limit)
    if is_on_gpu():  # on a CPU, MLX keeps next to nothing
        mx.set_cache_limit(limit // _CACHED)
    if mx.metal.is_available():
        mx.set_wired_limit(limit)
    return limit


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception says that an allocation failed."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(sign in text for sign in _SIGNS))


def until_it_fits(work: Callable[[], Result], make_smaller: Callable[[], None]) -> Result:
    """Return the result of `work`, and repeat it after `make_smaller` as often as an allocation fails."""
    while True:
        try:
            return work()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        free_memory()  # only here: until its end, the exception holds the arrays of the computation that failed
        make_smaller()


def free_memory() -> None:
    """Free the arrays of computations that have ended, and the buffers that MLX keeps."""
    gc.collect()
    mx.clear_cache()


def smaller_slots(rollout: RolloutConfig) -> Smaller | None:
    """Return half the responses to write at a time; None at one."""
    slots = min(rollout.slots, rollout.batch_size) // 2
    return Smaller("rollout.slots", slots) if slots else None


def smaller_micro_batch(tokens: int, longest: int, sequences: int) -> Smaller | None:
    """Return half the tokens of a micro-batch; None if it is one sequence already.

    tokens: `optim.micro_batch_tokens`; longest: those of the longest sequence; sequences: of the largest batch.
    """
    tokens = min(tokens, longest * sequences)
    return Smaller("optim.micro_batch_tokens", tokens // 2) if tokens >= 2 * longest else None


def lowered(config: AnyConfig, change: Smaller, phase: Phase, peak: int, limit: int) -> str:
    """Return a line on a change: what it is, and the peak of the phase that called for it; `REFUSED` if it failed."""
    section, _, name = change.key.partition(".")
    old = getattr(getattr(config, section), name)
    needs = "an allocation failed" if peak == REFUSED else f"{_gigabytes(peak)} are more than {_gigabytes(limit)}"
    return f"{change.key} lowered from {old} to {change.value}: {needs} in the phase '{phase}'"


def too_large(phase: Phase, limit: int) -> OutOfMemoryError:
    """Return the error of a phase that does not fit with one sequence at a time. limit: bytes."""
    return OutOfMemoryError(
        f"the phase '{phase}' does not fit {_gigabytes(limit)} with a single sequence at a time: {_ADVICE}"
    )


def peak_of(part: Callable[[], object]) -> int:
    """Run a part of the training and return the peak of MLX's allocations, bytes; `REFUSED` if one failed."""
    free_memory()
    mx.reset_peak_memory()
    try:
        part()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return REFUSED
    return mx.get_peak_memory()


def is_on_gpu() -> bool:
    """Return whether MLX computes on a GPU."""
    return mx.default_device() != mx.Device(mx.cpu)


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
