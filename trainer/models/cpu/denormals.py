"""Threads that compute with zeros instead of denormal numbers, on an x86-64 processor under Linux.

A float32 below 1.2e-38 is denormal, and Intel's cores take over a hundred cycles for an operation on one. Attention has
many: where a head looks at one token with a probability of 1e-22, the gradient there is a product of such numbers. They
take more than half of the time of a gradient (`benchmarks/bench_denormals.py`). GPUs flush them by default.

A thread inherits this from the one that starts it. So only MLX's threads, and those of the BLAS, get it: Python and
NumPy compute as ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import platform
import struct
import sys
from collections.abc import Iterator

_MXCSR = 28  # its place in fenv_t on x86-64, for glibc and musl alike
_SIZE = 64  # bytes of room for fenv_t, which has 32
_MASKS = 0x1F80  # no exception traps: so in every ordinary process
_FLUSH = 0x8040  # results to zero, and operands are zero; Intel 64 manual, volume 1, section 10.2.3


@contextlib.contextmanager
def denormals_as_zeros() -> Iterator[None]:
    """Compute with zeros for denormals inside the block, also on the threads that it starts, for as long as they live.

    Does nothing on other systems and processors.
    """
    control = _control_word()
    if control is None:
        yield
        return
    _set_control_word(control | _FLUSH)
    try:
        yield
    finally:
        _set_control_word(control)


def start_compute_threads() -> None:
    """Start the threads on which MLX computes for this one, with zeros for denormals.

    Call it before this thread uses MLX: those that run already stay as they are. Nothing on a GPU.
    """
    import mlx.core as mx

    if mx.default_device() != mx.Device(mx.cpu):
        return
    with denormals_as_zeros():
        ones = mx.ones((256, 256))
        mx.eval(ones @ ones)


def _control_word() -> int | None:
    """Return the floating-point control of this thread; None where it is not known, or someone has set traps."""
    environment = _environment()
    if environment is None:
        return None
    (control,) = struct.unpack_from("<I", environment, _MXCSR)
    return int(control) if control & _MASKS == _MASKS else None


def _set_control_word(control: int) -> None:
    environment = _environment()
    if environment is not None:
        struct.pack_into("<I", environment, _MXCSR, control)
        ctypes.CDLL(None).fesetenv(environment)


def _environment() -> ctypes.Array[ctypes.c_char] | None:
    """Return this thread's `fenv_t`; None on systems that keep it differently."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    environment = ctypes.create_string_buffer(_SIZE)
    library = ctypes.CDLL(None)
    if not hasattr(library, "fesetenv") or library.fegetenv(environment):
        return None
    return environment
