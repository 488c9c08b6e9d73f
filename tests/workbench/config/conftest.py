"""Presets for the tests of the Config pane."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from trainer.config import PRESETS

STORIES = Path(__file__).parents[3] / "benchmarks" / "stories.toml"


@pytest.fixture
def usual_quickstart(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the quickstart usual settings, which tests step and edit: its own change with what learns best."""
    presets = tmp_path_factory.mktemp("shipped") / "presets"
    shutil.copytree(PRESETS, presets)
    shutil.copyfile(STORIES, presets / "quickstart.toml")
    for module in ("trainer.config.loading", "workbench.config.document"):
        monkeypatch.setattr(f"{module}.PRESETS", presets)
