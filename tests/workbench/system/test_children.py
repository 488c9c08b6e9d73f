"""Processes beside the program: what they import, their share of the cores, and what they report."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from apart import ROOT

from trainer.errors import ModelError
from workbench.labelling.session_worker import score as score_rows
from workbench.reward_model.training import RewardTraining
from workbench.system.children import LOG, continue_headless, last_error, with_share_of_cores

PLANTED = ("random.py", "trainer.py", "workbench.py", "pydantic.py")

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@pytest.mark.parametrize(
    ("jobs", "given", "share"),
    [(2, {}, "3"), (4, {}, "1"), (9, {}, "1"), (1, {}, None), (2, {"MKL_NUM_THREADS": "5"}, None)],
)
def test_each_process_gets_its_share_of_six_cores_unless_the_user_has_set_one(
    jobs: int, given: dict[str, str], share: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(6), raising=False)
    for name in THREADS:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert with_share_of_cores(jobs) == {**os.environ, **(dict.fromkeys(THREADS, share) if share else {})}


def test_the_last_error_of_a_log_counts_else_its_last_line() -> None:
    log = io.BytesIO(b"ppo-workbench: error: first\nppo-workbench: error: second\nTraceback\n\n")
    assert last_error(log) == "second"
    assert last_error(io.BytesIO(b"one\ntwo\n\n")) == "two"
    assert last_error(io.BytesIO()) == ""


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
