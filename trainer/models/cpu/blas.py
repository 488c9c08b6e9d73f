"""Fast BLAS for MLX on a Linux CPU, and reuse of the memory that MLX frees.

MLX's wheel for the CPU calls `cblas_sgemm` by name and contains only its reference implementation: 4 GFLOP/s at
n = 1024, where two AVX-512 cores of Intel give 300 with MKL and 250 with OpenBLAS. Two of AMD give about 205 with
either, but flat products are faster with OpenBLAS there (`benchmarks/bench_blas.py`). A library that enters the global
symbol table before `mlx.core` takes over that call, so `load_blas` runs when `trainer` is imported.

`PPO_WORKBENCH_BLAS` selects it: `mkl`, `openblas`, `none`, or the path of a library.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
import platform
import re
import site
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from trainer.files import cache_folder
from trainer.models.cpu.denormals import denormals_as_zeros, start_compute_threads

VARIABLE = "PPO_WORKBENCH_BLAS"
REMEDY = "install a real BLAS with pip install 'ppo-workbench[cpu]' or apt install libopenblas0"
_DEVICES = Path("/dev")
REFERENCE_GFLOPS = 10.0  # the reference BLAS gives 1 to 4, a fast one over 50 per core


class Blas(NamedTuple):
    """BLAS that computes MLX's matrix products on the CPU."""

    name: str = "mlx"  # "mkl", "openblas", the file name of a library, or "mlx": the one in MLX
    path: Path | None = None  # the loaded library; a bare file name if the system's loader found it
    problem: str | None = None  # one line: why no fast BLAS is active, and the way out


_loaded: Blas | None = None


def loaded_blas() -> Blas:
    """Return the result of `load_blas` in this process."""
    return _loaded or Blas()


def load_blas() -> Blas:
    """Load MKL or OpenBLAS for MLX to use; once per process, before `mlx.core` is imported.

    The one that is faster on this processor comes first, the other if that cannot be loaded. Does nothing on a Mac, or
    with a CUDA build of MLX and a GPU. Does not import MLX and takes about 10 ms. Never raises: errors are in `problem`
    of the result.
    """
    global _loaded
    if _loaded is None:
        _loaded = _load(os.environ.get(VARIABLE, "")) if mlx_runs_on_linux_cpu() else Blas()
    return _loaded


@functools.cache
def measure_matmul() -> float:
    """Measure the float32 product of two [512, 512] matrices on MLX's default device, in GFLOP/s; the best of five.

    Call it on the thread that uses MLX. Takes a few milliseconds with a fast BLAS, half a second without; once in a
    process.
    """
    import mlx.core as mx

    n = 512
    start_compute_threads()
    a = mx.full((n, n), 0.5)
    mx.eval(a @ a)  # the first of this size may start more
    seconds = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        mx.eval(a @ a)
        seconds = min(seconds, time.perf_counter() - start)
    return 2 * n**3 / seconds / 1e9


def blas_warning(gflops: float) -> str | None:
    """Return a warning with the way out if only the reference BLAS of MLX is active, else None.

    gflops: the result of `measure_matmul`.
    """
    blas = loaded_blas()
    if gflops >= REFERENCE_GFLOPS or blas.path or sys.platform != "linux":
        return None
    import mlx.core as mx

    if mx.default_device() != mx.Device(mx.cpu):
        return None
    cost = "a fast BLAS reaches 50 or more per core; without one, everything takes at least ten times as long"
    return f"matrix products run at only {gflops:.1f} GFLOP/s ({cost}): {blas.problem or REMEDY}"


def mlx_runs_on_linux_cpu() -> bool:
    """Return whether MLX, which need not be imported yet, will compute on a CPU under Linux.

    A CUDA build does so where there is no NVIDIA GPU.
    """
    if sys.platform != "linux":
        return False
    spec = importlib.util.find_spec("mlx")  # a namespace package: finding it imports nothing
    places = spec.submodule_search_locations if spec else None
    cuda = any(next(Path(place).parent.glob("mlx_cuda*.dist-info"), None) for place in places or ())
    return not (cuda and nvidia_gpu())


def nvidia_gpu() -> Path | None:
    """Return the device file of an NVIDIA GPU, also under WSL 2, or None without one."""
    return next((path for path in (*sorted(_DEVICES.glob("nvidia[0-9]*")), _DEVICES / "dxg") if path.exists()), None)


def _load(choice: str) -> Blas:
    if choice == "none":
        return Blas(problem=f"{VARIABLE} = none makes MLX use its slow reference BLAS: unset it")
    if "mlx.core" in sys.modules:
        return Blas(problem="mlx.core was imported before a real BLAS was loaded: import trainer first")
    if choice and choice not in _FILES and "/" not in choice:
        return Blas(problem=f"{VARIABLE} = {choice} names no BLAS: use mkl, openblas, none or a path")
    reasons = []
    for name, file in _candidates(choice):
        try:
            path = str(_named_openblas()) if file == _PACKAGED else file
            _open(path)
        except (OSError, AttributeError) as error:
            reasons.append(f"{file}: {error}" if file not in str(error) else str(error))
        else:
            return Blas(name, Path(path))
    if not choice:
        return Blas(problem=REMEDY)
    reason = reasons[0] if reasons else "no such library was found"
    return Blas(problem=f"{VARIABLE} = {choice} cannot be loaded ({reason}): unset it, or {REMEDY}")


def _candidates(choice: str) -> Iterator[tuple[str, str]]:
    """Yield pairs of name and file, best first."""
    if "/" in choice:
        yield Path(choice).name, choice
        return
    for name in ("openblas", "mkl") if _is_amd() else ("mkl", "openblas"):
        if choice in ("", name):
            yield from ((name, file) for file in _FILES[name]())


def _mkl_files() -> Iterator[str]:
    """Yield the files where pip and conda put MKL, the highest interface version first."""
    for prefix in (sys.prefix, site.getuserbase()):
        found = Path(prefix, "lib").glob("libmkl_rt.so*")
        by_version = sorted(found, key=lambda path: list(map(int, re.findall(r"\d+", path.name))), reverse=True)
        yield from map(str, by_version)


def _openblas_files() -> Iterator[str]:
    if _packaged_openblas():
        yield _PACKAGED
    yield from map(str, Path(sys.prefix, "lib").glob("libopenblas.so.0"))  # conda
    yield "libopenblas.so.0"  # wherever the system's loader looks
    yield from map(str, sorted(Path("/usr/lib").glob("*-linux-gnu/openblas*/libopenblas.so.0")))


# The package `scipy-openblas32` prefixes every name, so that programs with another BLAS can use it too:
# `scipy_cblas_sgemm`. A library of one function, compiled once into the user's cache, gives it the plain name.
_PACKAGED_MODULE = "scipy_openblas32"
_SOURCE = """
extern "C" {
void scipy_cblas_sgemm(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float* a,
                       int lda, const float* b, int ldb, float beta, float* c, int ldc);

void cblas_sgemm(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float* a,
                 int lda, const float* b, int ldb, float beta, float* c, int ldc) {
  scipy_cblas_sgemm(order, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
}
"""


def _named_openblas() -> Path:
    """Return a library that has the package's `cblas_sgemm` under that name; compile it on the first call.

    This takes about 0.1 s and needs g++, as MLX's own kernels do. Raises OSError if the package or g++ is absent, or
    the cache is not writable or belongs to another user.
    """
    library = _packaged_openblas()
    if library is None:
        raise FileNotFoundError("the package scipy-openblas32 is not installed")
    content = "\n".join((_SOURCE, str(library), platform.machine())).encode()
    folder = cache_folder() / "blas"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"'{folder}' can be written by other users")
    target = folder / f"cblas-{hashlib.sha256(content).hexdigest()[:16]}.so"
    if not target.is_file():
        _compile(library, target)
    return target


def _packaged_openblas() -> Path | None:
    spec = importlib.util.find_spec(_PACKAGED_MODULE)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (library := Path(place) / "lib" / "libscipy_openblas.so").is_file():
            return library
    return None


def _compile(library: Path, target: Path) -> None:
    """Write the library whole or not at all, also if several processes do so at once. Raises OSError."""
    new = target.with_suffix(f".{os.getpid()}")
    command = ["g++", "-O2", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(new)]
    command += [f"-L{library.parent}", "-lscipy_openblas", f"-Wl,-rpath,{library.parent}"]
    try:
        done = subprocess.run(command, input=_SOURCE, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"g++ failed: {(done.stderr.strip().splitlines() or ['without a message'])[-1]}")
        new.replace(target)
    finally:
        new.unlink(missing_ok=True)


def _is_amd() -> bool:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            return "AuthenticAMD" in file.read(256)  # the second line says it
    except OSError:
        return False


_PACKAGED = "scipy-openblas32"
_FILES: dict[str, Callable[[], Iterator[str]]] = {"mkl": _mkl_files, "openblas": _openblas_files}


def _open(file: str) -> None:
    """Load a library into the global symbol table. Raises OSError or AttributeError if it is not usable."""
    # A thread that waits for work spins, 200 ms in MKL, on a core that the terminal screen needs. At 1 ms, a product
    # followed by half a second of idling costs 0.03 s of CPU instead of 0.22 (OpenBLAS: 0.02 instead of up to 0.12),
    # and a loop of MLPs runs as fast on 1.4 cores as before on 2.0. At 0 ms, an [8, 576] x [576, 1536] product takes
    # 1.5 times as long. With OpenBLAS, the 95th percentile of a key while training falls from 37 ms at 2^21 cycles to
    # 31 at 2^16, and an iteration takes as long.
    os.environ.setdefault("KMP_BLOCKTIME", "1")
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "16")  # 2^16 cycles
    # Intel's OpenMP sets this variable at the first product, on MLX's thread. If the main thread starts the compiler of
    # a kernel at that moment, it reads the environment while it is moved in memory, and `popen` fails. A variable that
    # is there already stays where it is.
    os.environ.setdefault("MEMKIND_HEAP_MANAGER", "TBB")
    with denormals_as_zeros():  # OpenBLAS starts its threads here
        library = ctypes.CDLL(file, mode=ctypes.RTLD_GLOBAL)
    _ = library.cblas_sgemm  # some builds prefix their names, so MLX would not find them
    if "MKL_CBWR" not in os.environ and hasattr(library, "MKL_CBWR_Set"):
        _make_reproducible(library)


def _make_reproducible(mkl: ctypes.CDLL) -> None:
    """Make MKL return the same bits for the same values, whatever their alignment and the number of threads.

    Otherwise results with one thread and with two differ in the last bits. On AVX-512 this has no measurable cost (303
    and 296 GFLOP/s at n = 512). MKL guarantees it only for its AVX2 and AVX-512 branches, and requesting it elsewhere
    may select a slow branch. There, as with OpenBLAS, the same bits need the same number of threads. See Intel oneMKL
    Developer Guide, "Reproducibility Conditions"; the numbers are those of mkl_types.h.
    """
    strict, avx2, avx512, avx512_e1 = 0x10000, 10, 12, 14
    branch = mkl.MKL_CBWR_Get_Auto_Branch()
    if branch in (avx2, avx512, avx512_e1):
        mkl.MKL_CBWR_Set(branch | strict)


# malloc.h of glibc
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_KEPT = 2**30  # bytes: blocks up to this size, and as much at the top of the heap


def keep_freed_memory() -> bool:
    """Make glibc keep freed blocks for the next operation; return whether it does.

    MLX's CPU allocator is malloc, and glibc returns every large block to the kernel at once. The kernel clears its
    pages when the next operation requests the same size again: in a pass through a model of 135 million weights this
    took 280,000 page faults and a quarter of the time. Keeping blocks costs about 5% more resident memory.

    Call this before MLX starts a thread. Does nothing on other systems and C libraries, or if the environment sets a
    variable such as MALLOC_ARENA_MAX.
    """
    if not mlx_runs_on_linux_cpu() or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl does not have it
    if mallopt is None:
        return False
    # One arena: the others cannot hold a block over 64 MB, and no arena reuses what another has freed.
    wanted = ((_M_MMAP_THRESHOLD, _KEPT), (_M_TRIM_THRESHOLD, _KEPT), (_M_ARENA_MAX, 1))
    return all(mallopt(option, value) for option, value in wanted)
