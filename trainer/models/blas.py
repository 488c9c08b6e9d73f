"""Fast BLAS for MLX on a Linux CPU, threads that skip denormal numbers, and reuse of the memory that MLX frees.

MLX's wheel for the CPU calls `cblas_sgemm` by name and contains only its reference implementation: 4 GFLOP/s at
n = 1024, where two AVX-512 cores of Intel give 300 with MKL and 250 with OpenBLAS. Two of AMD give about 205 with
either, but flat products are faster with OpenBLAS there. A library that enters the global symbol table before
`mlx.core` takes over that call, so `load_blas` runs when `trainer` is imported.

`PPO_WORKBENCH_BLAS` selects it: `mkl`, `openblas`, `none`, or the path of a library.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import os
import platform
import re
import site
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trainer.files import cache_folder

VARIABLE = "PPO_WORKBENCH_BLAS"
REMEDY = "install a real BLAS with pip install 'ppo-workbench[cpu]' or apt install libopenblas0"
DEVICES = Path("/dev")
REFERENCE_GFLOPS = 10.0  # the reference BLAS gives 1 to 4, a fast one over 50 per core


class Blas(NamedTuple):
    """BLAS that computes MLX's matrix products on the CPU."""

    name: str = "mlx"  # "mkl", "openblas", the file name of a library, or "mlx": the one in MLX
    path: Path | None = None  # the loaded library; a bare file name if the system's loader found it
    problem: str | None = None  # one line: why no fast BLAS is active, and the way out


@functools.cache
def load_blas() -> Blas:
    """Load MKL or OpenBLAS for MLX to use; once per process, before `mlx.core` is imported.

    The one that is faster on this processor comes first, the other if that cannot be loaded. Does nothing on a Mac, or
    with a CUDA build of MLX and a GPU. Does not import MLX and takes about 10 ms. Never raises: errors are in `problem`
    of the result, which every call returns.
    """
    if not mlx_runs_on_linux_cpu():
        return Blas()
    choice, reasons = os.environ.get(VARIABLE, ""), []
    if choice == "none":
        return Blas(problem=f"{VARIABLE} = none makes MLX use its slow reference BLAS: unset it")
    if "mlx.core" in sys.modules:
        return Blas(problem="mlx.core was imported before a real BLAS was loaded: import trainer first")
    if choice not in ("", "mkl", "openblas") and "/" not in choice:
        return Blas(problem=f"{VARIABLE} = {choice} names no BLAS: use mkl, openblas, none or a path")
    for name, file in _candidates(choice):
        try:
            path = str(_with_plain_name(Path(file))) if file.endswith(_PREFIXED) else file
            _open(path)
        except (OSError, AttributeError) as error:
            reasons.append(f"{file}: {error}" if file not in str(error) else str(error))
        else:
            return Blas(name, Path(path))
    if not choice:
        return Blas(problem=REMEDY)
    reason = reasons[0] if reasons else "no such library was found"
    return Blas(problem=f"{VARIABLE} = {choice} cannot be loaded ({reason}): unset it, or {REMEDY}")


@functools.cache
def measure_matmul(n: int = 512, *, half: bool = False) -> float:
    """Measure the product of two [n, n] matrices on MLX's default device, in GFLOP/s; the best of five.

    half: in bfloat16 instead of float32. Small matrices would measure how long a kernel of a GPU takes to start. Call
    it on the thread that uses MLX. With 512, it takes a few milliseconds with a fast BLAS, half a second without; once
    in a process.
    """
    import mlx.core as mx

    start_compute_threads()
    a = mx.full((n, n), 0.5, dtype=mx.bfloat16 if half else mx.float32)
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
    blas = load_blas()
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
    return next((path for path in (*sorted(DEVICES.glob("nvidia[0-9]*")), DEVICES / "dxg") if path.exists()), None)


def _candidates(choice: str) -> Iterator[tuple[str, str]]:
    """Yield pairs of name and file, best first."""
    if "/" in choice:
        yield Path(choice).name, choice
        return
    # Where pip and conda put MKL, the highest interface version first.
    mkl: list[str] = []
    for prefix in (sys.prefix, site.getuserbase()):
        found = Path(prefix, "lib").glob("libmkl_rt.so*")
        mkl += sorted(
            map(str, found), key=lambda name: list(map(int, re.findall(r"\d+", Path(name).name))), reverse=True
        )
    package = importlib.util.find_spec("scipy_openblas32")
    openblas = [str(Path(place, "lib", _PREFIXED)) for place in (package and package.submodule_search_locations) or ()]
    openblas += map(str, Path(sys.prefix, "lib").glob("libopenblas.so.0"))  # conda
    openblas += ["libopenblas.so.0"]  # wherever the system's loader looks
    openblas += map(str, sorted(Path("/usr/lib").glob("*-linux-gnu/openblas*/libopenblas.so.0")))
    files = {"mkl": mkl, "openblas": openblas}
    for name in ("openblas", "mkl") if is_amd() else ("mkl", "openblas"):
        if choice in ("", name):
            yield from ((name, file) for file in files[name])


# The package `scipy-openblas32` prefixes every name, so that programs with another BLAS can use it too:
# `scipy_cblas_sgemm`. A library of one function, compiled once into the user's cache, gives it the plain name.
_PREFIXED = "libscipy_openblas.so"
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


def _with_plain_name(library: Path) -> Path:
    """Return a library that has the `cblas_sgemm` of `library` under that name; compile it on the first call.

    This takes about 0.1 s and needs g++, as MLX's own kernels do. Raises OSError if g++ is absent or fails, or the
    cache is not writable or belongs to another user.
    """
    content = "\n".join((_SOURCE, str(library), platform.machine())).encode()
    folder = cache_folder() / "blas"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"'{folder}' can be written by other users")
    target = folder / f"cblas-{hashlib.sha256(content).hexdigest()[:16]}.so"
    if target.is_file():
        return target
    new = target.with_suffix(f".{os.getpid()}")  # several processes may do so at once
    command = ["g++", "-O2", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(new)]
    command += [f"-L{library.parent}", "-lscipy_openblas", f"-Wl,-rpath,{library.parent}"]
    try:
        done = subprocess.run(command, input=_SOURCE, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"g++ failed: {(done.stderr.strip().splitlines() or ['without a message'])[-1]}")
        new.replace(target)
    finally:
        new.unlink(missing_ok=True)
    return target


def is_amd() -> bool:
    """Return whether the processor is one of AMD's; False where that is not known."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            return "AuthenticAMD" in file.read(256)  # the second line says it
    except OSError:
        return False


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
        # MKL is to return the same bits for the same values, whatever their alignment and the number of threads;
        # otherwise results with one thread and with two differ in the last bits. On AVX-512 this has no measurable cost
        # (303 and 296 GFLOP/s at n = 512). MKL guarantees it only for its AVX2 and AVX-512 branches, and requesting it
        # elsewhere may select a slow branch. There, as with OpenBLAS, the same bits need the same number of threads.
        # See Intel oneMKL Developer Guide, "Reproducibility Conditions"; the numbers are those of mkl_types.h.
        strict, avx2, avx512, avx512_e1 = 0x10000, 10, 12, 14
        branch = library.MKL_CBWR_Get_Auto_Branch()
        if branch in (avx2, avx512, avx512_e1):
            library.MKL_CBWR_Set(branch | strict)


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


# Denormal numbers. A float32 below 1.2e-38 is denormal, and Intel's cores take over a hundred cycles for an operation
# on one. Attention has many: where a head looks at one token with a probability of 1e-22, the gradient there is a
# product of such numbers. With them a gradient takes 2.25 times as long on two cores of a Xeon, and no longer on an AMD
# EPYC (`benchmarks/bench_denormals.py` at commit b9e8a6a). GPUs flush them by default. A thread inherits the setting
# from the one that starts it, so only MLX's threads, and those of the BLAS, get it: Python and NumPy compute as ever.
_MXCSR = 28  # its place in fenv_t on x86-64, for glibc and musl alike
_FENV_BYTES = 64  # room for fenv_t, which has 32
_MASKS = 0x1F80  # no exception traps: so in every ordinary process
_FLUSH = 0x8040  # results to zero, and operands are zero; Intel 64 manual, volume 1, section 10.2.3


@contextlib.contextmanager
def denormals_as_zeros() -> Iterator[None]:
    """Compute with zeros for denormals inside the block, also on the threads that it starts, for as long as they live.

    Does nothing on other systems and processors, or where someone has set traps.
    """
    library, environment = ctypes.CDLL(None), ctypes.create_string_buffer(_FENV_BYTES)
    is_known = sys.platform == "linux" and platform.machine() == "x86_64" and hasattr(library, "fesetenv")
    if not is_known or library.fegetenv(environment):
        yield
        return
    before = environment.raw
    (control,) = struct.unpack_from("<I", environment, _MXCSR)
    if control & _MASKS != _MASKS:
        yield
        return
    struct.pack_into("<I", environment, _MXCSR, control | _FLUSH)
    library.fesetenv(environment)
    try:
        yield
    finally:
        library.fesetenv(before)


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
