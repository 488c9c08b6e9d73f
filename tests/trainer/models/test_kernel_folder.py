"""The folder that MLX loads compiled code from belongs to the user."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from trainer.config.schema import BackboneConfig
from trainer.errors import ModelError
from trainer.models.backbone import load_backbone
from trainer.models.cpu.kernels import own_kernel_folder


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


def test_another_users_folder_is_refused_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mlx").mkdir()
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(ModelError, match="set TMPDIR"):
        load_backbone(BackboneConfig(path=str(tmp_path / "nowhere")))


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to(path.parent)])
def test_anything_but_a_folder_in_its_place_is_refused(make: object, tmp_path: Path) -> None:
    make(tmp_path / "mlx")  # type: ignore[operator]
    with pytest.raises(ModelError, match="set TMPDIR"):
        own_kernel_folder()
