"""Flushing of denormal numbers to zero, on an x86-64 processor under Linux.

A float32 below 1.2e-38 is denormal, and Intel's cores take over a hundred cycles for an operation on one. Attention has
many: where a head looks at one token with a probability of 1e-22, the gradient there is a product of such numbers. They
take more than half of the time of a gradient (`benchmarks/bench_denormals.py`). GPUs flush them by default.
"""

from __future__ import annotations

import ctypes
import platform
import struct
import sys

_MXCSR = 28  # its place in fenv_t on x86-64, for glibc and musl alike
_SIZE = 64  # bytes of room for fenv_t, which has 32
_MASKS = 0x1F80  # no exception traps: so in every ordinary process
_FLUSH = 0x8040  # results to zero, and operands are zero; Intel 64 manual, volume 1, section 10.2.3


def flush_denormals(flush: bool = True) -> bool:
    """Compute with zeros instead of denormals, on this thread and all that it starts from now on.

    This includes float64 in Python and NumPy, where numbers below 2.2e-308 are denormal. With `flush` false, undo it.
    Returns whether the processor does as asked. Does nothing on other systems and processors.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    environment = ctypes.create_string_buffer(_SIZE)
    math = ctypes.CDLL(None)
    if not hasattr(math, "fesetenv") or math.fegetenv(environment):
        return False
    (control,) = struct.unpack_from("<I", environment, _MXCSR)
    if control & _MASKS != _MASKS:  # an unknown layout, or traps that someone has set
        return False
    control = control | _FLUSH if flush else control & ~_FLUSH
    struct.pack_into("<I", environment, _MXCSR, control)
    return not math.fesetenv(environment)
