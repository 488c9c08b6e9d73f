"""Processes that the program starts import nothing from the working folder."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from apart import ROOT

from trainer.errors import ModelError
from workbench.labelling.session_worker import score as score_rows
from workbench.reward_model.training import RewardTraining
from workbench.system.children import LOG, continue_headless

PLANTED = ("random.py", "trainer.py", "workbench.py", "pydantic.py")


def detach(folder: Path) -> str:
    continue_headless(folder).wait()
    return (folder / LOG).read_text()


def train(folder: Path) -> str:
    training = RewardTraining(folder / "preferences.db", folder, [])
    training.process.wait()
    return training.end()[1]


def score(folder: Path) -> str:
    with pytest.raises(ModelError) as refused:
        score_rows("nowhere", [("Once", " there was joy.")], closing=threading.Event())
    return str(refused.value)


@pytest.mark.parametrize(
    ("start", "reported"),
    [(detach, "no run was started there"), (train, "preferences.db"), (score, "nowhere")],
    ids=["detach", "reward training", "scoring"],
)
def test_a_child_imports_nothing_from_the_working_folder(
    start: Callable[[Path], str], reported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    for name in PLANTED:
        (tmp_path / name).write_text(f"open({str(tmp_path / 'executed')!r}, 'w').close()\nraise SystemExit(99)\n")
    assert reported in start(tmp_path)
    assert not (tmp_path / "executed").exists()


def test_no_other_place_starts_the_interpreter() -> None:
    modules = [path for package in ("trainer", "workbench") for path in (ROOT / package).rglob("*.py")]
    found = sorted(path.name for path in modules if "sys.executable" in path.read_text())
    assert found == ["children.py"]
