"""Denormal numbers on a Linux CPU: zeros on MLX's threads, and as ever in Python and NumPy."""

import platform
import subprocess
import sys

import pytest

from trainer.models.cpu import blas as denormals
from trainer.models.cpu.blas import mlx_runs_on_linux_cpu

here = pytest.mark.skipif(
    platform.machine() != "x86_64" or not mlx_runs_on_linux_cpu(),
    reason="only x86-64 under Linux keeps denormals in a control word of each thread that we set; a GPU has none",
)
PROGRAM = (
    "import trainer, trainer.models.cpu.blas as denormals\n"
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


def products(start: str) -> list[float]:
    """Return products of 1e-20 on two threads: four by MLX, then one by NumPy and one by Python on each."""
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(start)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return [float(number) for number in done.stdout.split()]


@here
def test_mlx_computes_with_zeros_on_every_thread_that_asks_and_python_as_ever() -> None:
    found = products("denormals.start_compute_threads")
    for thread in (found[:6], found[6:]):
        assert thread[:4] == [0.0] * 4
        assert all(0 < number < 1.2e-38 for number in thread[4:])


@here
def test_without_that_mlx_computes_denormals() -> None:  # so that the test above can fail
    found = products("(lambda: None)")
    assert all(0 < number < 1.2e-36 for number in found)


@here
@pytest.mark.parametrize("error", [None, ValueError])
def test_the_calling_thread_is_as_before_after_the_block(error: type[Exception] | None) -> None:
    def block() -> float:
        with denormals.denormals_as_zeros():
            flushed = sys.float_info.min * 0.5
            if error:
                raise error
        return flushed

    if error:
        with pytest.raises(error):
            block()
    else:
        assert block() == 0.0
    assert sys.float_info.min * 0.5 > 0.0


def test_another_processor_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with denormals.denormals_as_zeros():
        assert sys.float_info.min * 0.5 > 0.0


def test_the_exit_waits_for_a_thread_that_still_frees_what_it_has_compiled() -> None:
    """Python's join returns before that, and freeing needs the interpreter: the process would be aborted."""
    program = (
        "import threading, trainer, mlx.core as mx\n"
        "from trainer.models.cpu.blas import start_compute_threads\n"
        "double = mx.compile(lambda x: x + x)\n"
        "def work():\n"
        "    start_compute_threads()\n"
        "    for size in range(1, 400):\n"
        "        double(mx.ones(size))\n"
        "thread = threading.Thread(target=work)\n"
        "thread.start()\n"
        "thread.join()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
