"""Checks of what training would run on here, what is slow about it, and what to do about that."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from importlib import metadata, util
from typing import Literal, NamedTuple

import psutil

from trainer.models import blas, starter

QUICKSTART_BYTES = 3_000_000_000  # 1.5 GB of MLX at its peak, the libraries, and some room
STARTER_BYTES = 545_000_000  # of the converted model on disk

_CUDA_BACKENDS = ("mlx-cuda-12", "mlx-cuda-13")
_BACKENDS = ("mlx-cpu", *_CUDA_BACKENDS, "mlx-metal")
_INSTALL = "install one of the extras cpu and cuda, as in pip install 'ppo-workbench[cpu]'; a Mac needs none"
_INSTALL_CUDA = "make a new environment with the extra cuda, or cuda12 for CUDA 12: pip install 'ppo-workbench[cuda]'"
_DRIVER = "check the driver with nvidia-smi, or make a new environment with the extra cpu, which has a fast BLAS"
_OTHER_CACHE = "free space there, or name a writable folder in PPO_WORKBENCH_CACHE"


class Check(NamedTuple):
    """Result of one check: ok, warn (training is slow, or works in part) or fail (it does not work)."""

    name: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    advice: str = ""  # the way out; empty when the status is ok


def checks() -> Iterator[Check]:
    """Yield every check in turn, run when it is requested. Imports MLX on the calling thread; never raises."""
    yield _packages()
    yield from _mlx()
    yield from _machine()


def _packages() -> Check:
    """Check that MLX has exactly one backend: backends are separate packages."""
    backends = [f"{name} {version}" for name in _BACKENDS if (version := version_of(name))]
    mlx = f"mlx {version_of('mlx') or 'absent'}"
    detail = ", ".join([f"Python {platform.python_version()}", mlx, *(backends or ["no backend"])])
    if len(backends) == 1:
        if backends[0].startswith("mlx-cpu") and (gpu := blas.nvidia_gpu()):
            cost = f"there is an NVIDIA GPU ({gpu}), but mlx-cpu trains on the CPU, which is many times slower"
            return Check("packages", "warn", f"{detail}; {cost}", _INSTALL_CUDA)
        return Check("packages", "ok", detail)
    several = "backends overwrite each other's files: make a new environment with one of them"
    return Check("packages", "fail", detail, several if backends else _INSTALL)


def _mlx() -> Iterator[Check]:
    """Check that MLX runs, and then how much memory it uses, how fast it multiplies, and what compiles its kernels."""
    try:
        import mlx.core as mx

        device = mx.default_device()
        about = mx.device_info(device)
        mx.eval(mx.ones(1) + 1)
    except (ImportError, RuntimeError, OSError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        yield Check("mlx", "fail", f"does not run: {reason}", _INSTALL)
        return
    on_cpu = device.type == mx.DeviceType.cpu
    detail = f"runs on the {'CPU' if on_cpu else 'GPU'}, {about.get('device_name', 'a device without a name')}"
    for name in ("memory_size", "total_memory"):  # on Metal and on CUDA
        if name in about:
            detail += f", {_gigabytes(about[name])} of memory"
    if on_cpu and (cuda := next(filter(version_of, _CUDA_BACKENDS), "")):
        cost = f"{cuda} finds no NVIDIA GPU that it can use, and training on the CPU is many times slower"
        yield Check("mlx", "warn", f"{detail}; {cost}", _DRIVER)
    else:
        yield Check("mlx", "ok", detail)

    cache = mx.set_cache_limit(0)  # MLX reports the limit only when another is set
    mx.set_cache_limit(cache)
    detail = f"MLX uses up to {_gigabytes(mx.get_memory_limit())}; beyond that it swaps or fails. "
    detail += f"It keeps up to {cache / 1e6:,.0f} MB of what it frees"
    if wired := mx.device_info().get("max_recommended_working_set_size"):  # macOS may page out what is not wired
        detail += f"; {_gigabytes(wired)} stay wired while it trains: the rest may be paged out, which is slow"
    yield Check("limits", "ok", detail)

    if mx.default_device() == mx.Device(mx.gpu):
        tflops = blas.measure_matmul(8192, half=True) / 1000
        yield Check("matmul", "ok", f"bfloat16 products at {tflops:.1f} TFLOP/s, by the GPU")
    else:
        gflops = blas.measure_matmul()
        detail = f"float32 products at {gflops:.0f} GFLOP/s, by {blas.load_blas().name}"
        slow = blas.blas_warning(gflops)
        yield Check("matmul", "warn" if slow else "ok", detail, slow or "")

    # g++, by this very name, on a CPU; MLX's own compiler on CUDA, none on Metal.
    if mx.cuda.is_available():
        cost = "kernels for 4-bit weights took over 130 s on an H100"
        yield Check("compiler", "ok", f"MLX compiles CUDA kernels at first use; {cost}")
    elif not mx.metal.is_available():
        if path := shutil.which("g++"):
            yield Check("compiler", "ok", f"{path}, about a second for each CPU kernel at first use")
        else:
            cost = "without it, log-probs and entropies take up to twice as long"
            detail = f"no g++, which MLX needs to compile its CPU kernels ({cost})"
            yield Check("compiler", "warn", detail, "install it (Debian: apt install g++)")


def _machine() -> Iterator[Check]:
    """Check the starter model, the cache and the memory."""
    folder, is_cached = starter.starter_folder(), starter.starter_is_cached()
    if is_cached:
        yield Check("starter", "ok", f"converted, in {folder}")
    elif util.find_spec(starter.PACKAGE) is None:
        yield Check("starter", "warn", "not installed, and the quickstart preset needs it", starter.INSTALL)
    else:
        yield Check("starter", "ok", "installed, will be converted on first use")

    root = folder.parents[1]
    existing = next(path for path in (root, *root.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    detail = f"{root}, {free / 1e9:.1f} GB free"
    if not os.access(existing, os.W_OK):
        yield Check("cache", "fail", f"{root} is not writable", _OTHER_CACHE)
    elif free < STARTER_BYTES and not is_cached:
        yield Check("cache", "warn", f"{detail}; the starter model takes 0.5 GB", _OTHER_CACHE)
    else:
        yield Check("cache", "ok", detail)

    memory = psutil.virtual_memory()
    detail = f"{memory.available / 1e9:.1f} of {memory.total / 1e9:.1f} GB available, {os.cpu_count()} cores"
    if memory.available < QUICKSTART_BYTES:
        yield Check("memory", "warn", f"{detail}; quickstart takes up to 3 GB and would swap", "end other programs")
    else:
        yield Check("memory", "ok", detail)


def _gigabytes(size: str | int) -> str:
    return f"{int(size) / 1e9:.1f} GB"


def version_of(name: str) -> str:
    """Return the version of an installed package, or an empty string."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
