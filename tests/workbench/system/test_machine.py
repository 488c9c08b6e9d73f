"""The device of a run and its memory, on machines of each sort."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from trainer.config.schema import ModelConfig
from trainer.models import blas
from workbench.system import machine
from workbench.system.machine import room_for, this_machine


@pytest.fixture(autouse=True)
def _memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=100, available=40))
    machine.nvidia_gpu.cache_clear()
    yield
    machine.nvidia_gpu.cache_clear()


def smi(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Put a program nvidia-smi that runs `body` first on the path, on a machine whose MLX uses a GPU."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(blas, "mlx_runs_on_linux_cpu", lambda: False)


def test_a_cpu_has_what_is_free_now_and_at_most_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "mlx_runs_on_linux_cpu", lambda: True)
    found = this_machine()
    assert found.device.startswith("CPU, ")
    assert (found.now, found.most, found.total) == (40, 100, 100)


def test_a_mac_leaves_memory_to_other_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    found = this_machine()
    assert found.device.endswith(" GPU")
    assert (found.now, found.most, found.total) == (70, 70, 100)


def test_a_gpu_has_its_own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, "echo 'NVIDIA H100, 80GB HBM3, 81559'; echo 'another, 1'")
    found = this_machine()
    assert found.device == "NVIDIA H100, 80GB HBM3"
    assert found.now == found.most == found.total == 81559 * 2**20


@pytest.mark.parametrize("body", ["exit 9", "true", "echo 'a driver that is broken'", "echo 'x, [N/A]'"])
def test_a_driver_that_says_nothing_leaves_the_cpu(body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, body)
    assert this_machine().device.startswith("CPU, ")


def test_a_limit_of_the_configuration_bounds_the_room_of_a_run() -> None:
    most = this_machine().most
    assert room_for(ModelConfig()) == most
    assert room_for(ModelConfig(memory_limit=most / 2e9)) == round(most / 2)
    assert room_for(ModelConfig(memory_limit=1e6)) == most
