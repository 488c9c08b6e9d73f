"""The BLAS under MLX, denormals as zeros, and memory that is kept. Each case of a BLAS has a process of its own."""

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.models import blas
from trainer.models.blas import Blas, blas_warning, mlx_runs_on_linux_cpu

CUDA = any(path.name.startswith("mlx_cuda") for folder in sys.path for path in Path(folder).glob("mlx_*"))
linux_cpu = pytest.mark.skipif(sys.platform != "linux" or CUDA, reason="a BLAS is loaded for Linux CPUs only")

SYSTEMS_OWN = ("libopenblas.so.0", *map(str, Path("/usr/lib").glob("*-linux-gnu/openblas*/libopenblas.so.0")))
WITHOUT_PACKAGE = (  # of OpenBLAS
    "import importlib.util as u; find = u.find_spec\n"
    "u.find_spec = lambda name, *rest: None if name == 'scipy_openblas32' else find(name, *rest)"
)


def run(code: str, **env: str) -> str:
    """Return the standard output of `code` in a fresh interpreter, without this process's settings."""
    ours = ("GLIBC_", "KMP_", "MALLOC_", "MEMKIND_", "MKL_", "OPENBLAS_", "PPO_WORKBENCH_")
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=inherited | env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def record(before: str = "", **env: str) -> Blas:
    """Return what `import trainer` loads in a fresh interpreter that ran `before`."""
    code = f"{before}\nimport json, trainer.models.blas as b\nprint(json.dumps(b.load_blas(), default=str))"
    name, path, problem = json.loads(run(code, **env))
    return Blas(name, path and Path(path), problem)


def compile_library(path: Path, function: str) -> Path:
    """Compile a shared library whose one function reports that it was called."""
    source = f'#include <cstdio>\nextern "C" void {function}() {{ std::puts("called"); std::fflush(stdout); }}'
    command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    return path


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(tmp_path_factory.mktemp("lib") / "libstandin.so", "cblas_sgemm")


def test_importing_trainer_imports_no_mlx() -> None:
    code = "import sys, trainer, trainer.models; print([name for name in sys.modules if 'mlx' in name])"
    assert run(code) == "[]"


@linux_cpu
def test_mlx_multiplies_with_the_loaded_library_with_mkl_and_with_none_by_its_own_reference(stand_in: Path) -> None:
    code = "import trainer, mlx.core as mx; a = mx.ones((64, 64)); mx.eval(a @ a)"
    assert run(code, PPO_WORKBENCH_BLAS=str(stand_in)) == "called"
    assert record(PPO_WORKBENCH_BLAS=str(stand_in)) == Blas("libstandin.so", stand_in)
    assert "SGEMM" in run(code, MKL_VERBOSE="1", PPO_WORKBENCH_BLAS="mkl")
    assert run(code, MKL_VERBOSE="1", PPO_WORKBENCH_BLAS="none") == ""


@linux_cpu
@pytest.mark.parametrize(("amd", "compiler"), [(True, True), (False, True), (True, False)])
def test_an_amd_processor_gets_openblas_if_it_compiles_and_another_mkl_of_the_highest_version(
    amd: bool, compiler: bool, stand_in: Path, tmp_path: Path
) -> None:
    (tmp_path / "lib").mkdir()
    for version in ("2", "10", "3"):
        shutil.copy(stand_in, tmp_path / "lib" / f"libmkl_rt.so.{version}")
    code = (
        f"import os, sys; sys.prefix = {str(tmp_path)!r}\n"
        f"if not {compiler}: os.environ['PATH'] = ''\n"
        f"import trainer.models.blas as b; b.is_amd = lambda: {amd}\n"
        "b.load_blas.cache_clear(); print(*b.load_blas()[:2])"
    )
    cache = {} if compiler else {"PPO_WORKBENCH_CACHE": str(tmp_path), "LD_LIBRARY_PATH": str(tmp_path)}
    name, _, path = run(code, **cache).partition(" ")
    if amd and compiler:
        assert name == "openblas"
    else:
        assert path in (str(tmp_path / "lib" / "libmkl_rt.so.10"), *(SYSTEMS_OWN if amd else ()))


@linux_cpu
def test_the_packaged_openblas_multiplies_right_and_is_compiled_once(tmp_path: Path) -> None:
    code = """
import trainer, mlx.core as mx, numpy as np
a, b = mx.random.normal((33, 65)), mx.random.normal((77, 65))
print(np.allclose(np.array(a @ b.T), np.array(a) @ np.array(b).T, atol=1e-4))
"""
    env = {"PPO_WORKBENCH_BLAS": "openblas", "PPO_WORKBENCH_CACHE": str(tmp_path)}
    assert run(code, **env) == "True"
    [library] = tmp_path.glob("blas/*")
    compiled = library.stat()
    assert record(**env) == Blas("openblas", library)
    assert library.stat() == compiled


@linux_cpu
def test_a_cache_that_others_can_write_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "blas").mkdir()
    (tmp_path / "blas").chmod(0o777)
    blas = record(PPO_WORKBENCH_CACHE=str(tmp_path), PPO_WORKBENCH_BLAS="openblas")
    assert blas.path != tmp_path / "blas"
    assert list((tmp_path / "blas").iterdir()) == []
    if blas.problem:  # else the system has an OpenBLAS
        assert "can be written by other users" in blas.problem


@linux_cpu
def test_the_systems_openblas_serves_where_mkl_is_damaged(stand_in: Path, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libmkl_rt.so.3").write_bytes(b"not a library")
    shutil.copy(stand_in, tmp_path / "libopenblas.so.0")
    code = f"import sys; sys.prefix = {str(tmp_path)!r}\n{WITHOUT_PACKAGE}"
    blas = record(code, LD_LIBRARY_PATH=str(tmp_path), PYTHONUSERBASE=str(tmp_path))
    assert blas == Blas("openblas", Path("libopenblas.so.0"))


@linux_cpu
@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ("blis", "names no BLAS: use mkl, openblas, none or a path"),
        ("/no/such.so", "No such file"),
        (sys.executable, "cannot be loaded"),
        ("libprefixed.so", "undefined symbol: cblas_sgemm"),
        ("none", "unset it"),
    ],
)
def test_a_choice_that_gives_no_blas_is_reported_in_one_line(choice: str, reason: str, tmp_path: Path) -> None:
    if choice == "libprefixed.so":
        choice = str(compile_library(tmp_path / choice, "scipy_cblas_sgemm"))
    blas = record(PPO_WORKBENCH_BLAS=choice)
    assert blas[:2] == ("mlx", None)
    assert blas.problem is not None
    assert blas.problem.startswith(f"PPO_WORKBENCH_BLAS = {choice} ")
    assert reason in blas.problem
    assert "\n" not in blas.problem
    first = record("import mlx.core", PPO_WORKBENCH_BLAS="mkl").problem
    assert first == "mlx.core was imported before a real BLAS was loaded: import trainer first"


@linux_cpu
def test_a_cuda_build_of_mlx_gets_a_blas_only_where_there_is_no_gpu(tmp_path: Path, stand_in: Path) -> None:
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx_cuda_13-0.32.4.dist-info").mkdir()
    code = (
        "import pathlib, trainer.models.blas as b\n"
        f"b.DEVICES = pathlib.Path({str(tmp_path)!r}); b.load_blas.cache_clear(); print(b.load_blas().path)"
    )
    assert run(code, PYTHONPATH=str(tmp_path), PPO_WORKBENCH_BLAS=str(stand_in)) == str(stand_in)
    (tmp_path / "nvidia0").touch()
    assert run(code, PYTHONPATH=str(tmp_path), PPO_WORKBENCH_BLAS=str(stand_in)) == "None"


@linux_cpu
def test_waiting_threads_soon_sleep_unless_the_user_says_otherwise() -> None:
    code = "import os, trainer; print(os.environ['KMP_BLOCKTIME'], os.environ['OPENBLAS_THREAD_TIMEOUT'])"
    assert run(code) == "1 16"
    assert run(code, KMP_BLOCKTIME="200", OPENBLAS_THREAD_TIMEOUT="26") == "200 26"


@linux_cpu
def test_the_first_product_leaves_the_environment_as_it_is() -> None:
    """It runs on MLX's thread, while the main thread may start the compiler of a kernel and read the environment."""
    code = """
import ctypes, trainer, mlx.core as mx
variables = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
def found():
    count = next(n for n in range(100_000) if not variables[n])
    return ctypes.cast(variables, ctypes.c_void_p).value, [variables[n] for n in range(count)]
before = found()
a = mx.ones((300, 300))
mx.eval(a @ a)
print(found() == before)
"""
    assert run(code) == "True"


@linux_cpu
def test_the_warning_is_for_the_reference_blas_of_a_linux_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "load_blas", lambda: Blas(problem="unset it"))
    warning = str(blas_warning(1.7))
    assert warning.startswith("matrix products run at only 1.7 GFLOP/s")
    assert warning.endswith("unset it")
    assert blas_warning(120.0) is None
    with monkeypatch.context() as patched:
        patched.setattr("mlx.core.default_device", lambda: "a GPU")
        assert blas_warning(1.7) is None
    with monkeypatch.context() as patched:
        patched.setattr(sys, "platform", "darwin")
        assert blas_warning(1.7) is None
    monkeypatch.setattr(blas, "load_blas", lambda: Blas("libslow.so", Path("libslow.so")))
    assert blas_warning(1.7) is None, "a slow machine with a real BLAS"


PRODUCTS = """
import hashlib, trainer, mlx.core as mx, numpy as np
generator = np.random.default_rng(0)
for rows, inner, columns in [(1, 576, 192), (8, 576, 576), (33, 65, 77), (256, 512, 512)]:
    left = generator.standard_normal(rows * inner, dtype=np.float32)
    right = mx.array(generator.standard_normal((columns, inner), dtype=np.float32)).T
    for shift in range(16):  # a slice of a longer array starts at any multiple of four bytes
        flat = mx.concatenate([mx.zeros(shift), mx.array(left)])
        mx.eval(flat)
        product = flat[shift:].reshape(rows, inner) @ right
        print(hashlib.sha256(np.array(product)).hexdigest(), end=" ")
    print()
"""


def test_the_same_values_at_any_alignment_in_another_process_and_on_two_threads_give_the_same_bits() -> None:
    first = run(PRODUCTS)
    assert [len(set(line.split())) for line in first.splitlines()] == [1, 1, 1, 1]
    assert run(PRODUCTS) == first
    if sys.platform == "linux" and not CUDA and record(PPO_WORKBENCH_BLAS="mkl").name == "mkl":  # only MKL promises it
        one, two = (run(PRODUCTS, PPO_WORKBENCH_BLAS="mkl", MKL_NUM_THREADS=count) for count in ("1", "2"))
        assert one == two


# Denormal numbers: zeros on MLX's threads, and as ever in Python and NumPy

on_x86 = pytest.mark.skipif(
    platform.machine() != "x86_64" or not mlx_runs_on_linux_cpu(),
    reason="only x86-64 under Linux keeps denormals in a control word of each thread that we set; a GPU has none",
)
ON_THREADS = (
    "import trainer, trainer.models.blas as denormals\n"
    "import mlx.core as mx, numpy as np\n"
    "from concurrent.futures import ThreadPoolExecutor\n"
    "def products(start):\n"
    "    start()\n"
    "    for n in (4, 600):\n"
    "        a = mx.full((n, n), 1e-20)\n"
    "        print(float((a * a).max()), float((a @ a).max()), end=' ')\n"
    "    print(float(np.full(600, 1e-20, np.float32)[0] * np.float32(1e-20)), 5e-324 * 1.0, end=' ')\n"
    "with ThreadPoolExecutor(1) as other:\n"
    "    products({0})\n"
    "    other.submit(products, {0}).result()\n"
)


def products_of_denormals(start: str) -> list[float]:
    """Return products of 1e-20 on two threads: four by MLX, then one by NumPy and one by Python on each."""
    return [float(number) for number in run(ON_THREADS.format(start)).split()]


@on_x86
def test_mlx_computes_with_zeros_on_every_thread_that_asks_and_python_as_ever() -> None:
    found = products_of_denormals("denormals.start_compute_threads")
    for thread in (found[:6], found[6:]):
        assert thread[:4] == [0.0] * 4
        assert all(0 < number < 1.2e-38 for number in thread[4:])
    assert all(0 < number < 1.2e-36 for number in products_of_denormals("(lambda: None)")), "on those that do not ask"


@on_x86
def test_the_calling_thread_is_as_before_after_the_block() -> None:
    with blas.denormals_as_zeros():
        flushed = sys.float_info.min * 0.5
    assert flushed == 0.0 < sys.float_info.min * 0.5


def test_the_exit_waits_for_a_thread_that_still_frees_what_it_has_compiled() -> None:
    """Python's join returns before that, and freeing needs the interpreter: the process would be aborted."""
    run(
        "import threading, trainer, mlx.core as mx\n"
        "from trainer.models.blas import start_compute_threads\n"
        "double = mx.compile(lambda x: x + x)\n"
        "def work():\n"
        "    start_compute_threads()\n"
        "    for size in range(1, 400):\n"
        "        double(mx.ones(size))\n"
        "thread = threading.Thread(target=work)\n"
        "thread.start()\n"
        "thread.join()\n"
    )


# Freed memory

BLOCK = 64 * 2**20
FAULTS = f"""
import resource, trainer, mlx.core as mx
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    mx.eval(mx.zeros(({BLOCK // 4},)) + 1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


@pytest.mark.skipif(
    not mlx_runs_on_linux_cpu() or platform.libc_ver()[0] != "glibc",
    reason="the setting is of glibc's allocator; other C libraries and GPUs do not use it",
)
def test_freed_memory_is_used_again_unless_the_user_has_settings_of_their_own() -> None:
    pages = BLOCK // os.sysconf("SC_PAGESIZE")
    assert int(run(FAULTS)) < pages / 20
    assert int(run(FAULTS, MALLOC_MMAP_THRESHOLD_="65536")) >= pages
