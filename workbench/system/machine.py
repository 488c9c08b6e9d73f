"""The device that a run trains on and its memory, without loading MLX."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from functools import cache
from typing import NamedTuple

import psutil

from trainer.config.schema import BackboneConfig
from trainer.errors import counted
from trainer.models import blas
from workbench.text import visible

_UNIFIED = 0.7  # of the memory of a Mac: the rest is for others


class Machine(NamedTuple):
    """A device and its memory in bytes."""

    device: str  # in words, safe to print
    now: int  # bytes that a run may use now, beside other programs
    most: int  # bytes that a run may use at most
    total: int  # bytes of the device


def this_machine() -> Machine:
    """Return the device that a run would train on. Call it on a thread: a driver may be asked."""
    memory = psutil.virtual_memory()
    if sys.platform == "darwin":
        most = int(memory.total * _UNIFIED)
        return Machine(f"{platform.machine()} GPU", most, most, memory.total)
    if not blas.mlx_runs_on_linux_cpu() and (gpu := nvidia_gpu()):
        name, size = gpu
        return Machine(name, size, size, size)
    library = {"mkl": "MKL", "openblas": "OpenBLAS", "mlx": "no fast BLAS"}
    name = blas.load_blas().name
    device = f"CPU, {counted(os.cpu_count() or 1, 'core')}, {library.get(name, name)}"
    return Machine(device, memory.available, memory.total, memory.total)


def room_for(model: BackboneConfig) -> int:
    """Return the bytes that a run with `model` may take on this machine."""
    most = this_machine().most
    return min(round(model.memory_limit * 1e9) or most, most)


@cache
def nvidia_gpu() -> tuple[str, int] | None:
    """Return name and bytes of the first NVIDIA GPU; None if its driver does not say."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        name, _, mebibytes = found.splitlines()[0].rpartition(",")
        return visible(name.strip()), int(mebibytes) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
