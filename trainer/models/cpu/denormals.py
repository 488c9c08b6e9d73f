"""Threads that compute with zeros instead of denormal numbers, on an x86-64 processor under Linux.

A float32 below 1.2e-38 is denormal, and Intel's cores take over a hundred cycles for an operation on one. Attention has
many: where a head looks at one token with a probability of 1e-22, the gradient there is a product of such numbers. With
them a gradient takes 2.25 times as long on two cores of a Xeon, and no longer on an AMD EPYC
(`benchmarks/bench_denormals.py` at commit b9e8a6a). GPUs flush them by default.

A thread inherits this from the one that starts it. So only MLX's threads, and those of the BLAS, get it: Python and
NumPy compute as ever.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import platform
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

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


_computing: set[threading.Thread] = set()


@atexit.register
def _wait_for_ended_threads() -> None:
    """Wait until the threads that computed have ended for the system too, not only for Python's `join`.

    At its end a thread frees what MLX has compiled on it, for which it needs the interpreter. Without one, it ends the
    process with "terminate called without an active exception". Other systems than Linux do not tell; a tenth of a
    second is plenty.
    """
    end = time.monotonic() + 5
    for thread in _computing:
        place = Path(f"/proc/self/task/{thread.native_id}")
        while not thread.is_alive() and place.exists() and time.monotonic() < end:
            time.sleep(0.001)
    if _computing and not sys.platform.startswith("linux"):
        time.sleep(0.1)


def start_compute_threads() -> None:
    """Start the threads on which MLX computes for this one, with zeros for denormals. Not on a GPU.

    Call it before this thread uses MLX: those that run already stay as they are. The exit of the program then waits for
    the end of this thread.
    """
    import mlx.core as mx

    _computing.add(threading.current_thread())
    _computing.discard(threading.main_thread())
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
