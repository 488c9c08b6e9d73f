"""Denormal numbers on a Linux CPU: computed as zeros by this process and by all of MLX's threads."""

import platform
import subprocess
import sys

import pytest

from trainer.models.cpu import denormals
from trainer.models.cpu.blas import mlx_runs_on_linux_cpu

here = pytest.mark.skipif(
    platform.machine() != "x86_64" or not mlx_runs_on_linux_cpu(), reason="flushed where MLX runs on x86-64 and Linux"
)
PRODUCTS = (
    "import mlx.core as mx, threading\n"
    "from concurrent.futures import ThreadPoolExecutor\n"
    "def product(n):\n"
    "    a = mx.full((n, n), 1e-20)\n"
    "    return float((a * a).max()), float((a @ a).max())\n"
    "with ThreadPoolExecutor(1) as other:\n"
    "    print(*product(4), *product(600), *other.submit(product, 600).result())"
)


def products(before: str) -> list[float]:
    """Return products of 1e-20, as vectors and matrices, of small and large ones, on two threads."""
    done = subprocess.run([sys.executable, "-c", before + PRODUCTS], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return [float(number) for number in done.stdout.split()]


@here
def test_importing_trainer_makes_denormals_zero_on_every_thread() -> None:
    assert products("import trainer\n") == [0.0] * 6


@here
def test_denormals_come_back_where_they_are_asked_for() -> None:
    undo = "import trainer, trainer.models.cpu.denormals as d; assert d.flush_denormals(False)\n"
    assert all(0 < number < 1.2e-36 for number in products(undo))


@here
def test_ordinary_numbers_are_as_before() -> None:
    code = "import sys; print(sys.float_info.min * 1.0, 1e-300 * 1e300, float('nan') == 0, 1e308 * 10)"
    plain, ours = (
        subprocess.run([sys.executable, "-c", before + code], capture_output=True, text=True, check=True).stdout
        for before in ("", "import trainer; ")
    )
    assert plain == ours


def test_another_processor_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert not denormals.flush_denormals()
