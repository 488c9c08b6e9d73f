"""The folder that MLX loads compiled code from belongs to the user; a kernel that cannot be compiled is named."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest
from tiny import make_checkpoint

from trainer.config.schema import BackboneConfig
from trainer.errors import ModelError
from trainer.models.backbone import load_backbone
from trainer.models.kernels import own_kernel_folder


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.mark.parametrize("mode", [None, 0o777, 0o755])
def test_nobody_else_can_write_to_the_folder(mode: int | None, tmp_path: Path) -> None:
    if mode is not None:
        (tmp_path / "mlx").mkdir()
        (tmp_path / "mlx").chmod(mode)
    own_kernel_folder()
    assert stat.S_IMODE((tmp_path / "mlx").stat().st_mode) == 0o700


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to(path.parent), Path.mkdir])
def test_another_users_folder_and_anything_but_a_folder_are_refused_before_a_model_is_loaded(
    make: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "mlx")
    user = os.geteuid()
    if make is Path.mkdir:
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(ModelError, match="set TMPDIR"):
        load_backbone(BackboneConfig(path=str(tmp_path / "nowhere")))


@pytest.mark.skipif(mx.default_device() != mx.Device(mx.cpu), reason="g++ compiles the kernels of the CPU only")
@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        (
            'echo "cc1plus: error writing to k.s: No space left on device"; exit 1',
            r"cc1plus: .* No space left on device",
        ),
        ("exit 1", r"Failed to execute command with return code 1"),
    ],
)
def test_a_compiler_that_fails_is_blamed_and_not_the_model(compiler: str, reason: str, tmp_path: Path) -> None:
    """MLX asks for g++ once, when a process first compiles: hence a process of its own."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "g++").write_text(f'#!/bin/sh\n[ "$1" = --version ] && exit\n{compiler}\n')
    (tools / "g++").chmod(0o755)
    make_checkpoint(tmp_path / "model")
    environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    script = f"""
import mlx.core as mx
from trainer.config.schema import ModelConfig
from trainer.errors import ModelError
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.backbone import load_backbone
try:
    config = ModelConfig(path={str(tmp_path / "model")!r})
    ActorCriticLLM(load_backbone(config).backbone, config, key=mx.random.key(0))
except ModelError as error:
    print(error)
"""
    command = [sys.executable, "-c", script]
    reported = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    expected = rf"MLX could not compile a kernel \({reason}.*\): check that g\+\+ runs and that '.*/mlx' has space"
    assert re.match(expected, reported)
    assert len(reported.splitlines()) == 1
    assert len(reported) < 450
