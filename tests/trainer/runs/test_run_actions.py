"""A run is renamed and trashed as a whole, never while it trains, and never over another one."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs_helper import outcome, record, tiny_config

from trainer.config import load_config, validate
from trainer.errors import StorageError, UsageError
from trainer.events import RunEnded, RunStarted
from trainer.runs.folder import RunFolder, create_run, rename_run, run_folders, trash_run
from trainer.runs.listing import list_runs


def make(runs_dir: Path, name: str) -> RunFolder:
    folder = create_run(validate({"run": {"dir": str(runs_dir), "name": name}}), "quickstart")
    folder.events.write_text(f"the journal of {name}")
    return folder


def names(runs_dir: Path) -> list[str]:
    return [folder.name for folder in run_folders(runs_dir)]


def test_a_renamed_run_is_the_same_run_by_another_name(tmp_path: Path) -> None:
    make(tmp_path, "other")
    folder = make(tmp_path, "alpha")
    renamed = rename_run(folder, "beta-2")
    assert renamed == RunFolder(tmp_path / "beta-2")
    assert names(tmp_path) == ["beta-2", "other"]
    assert renamed.events.read_text() == "the journal of alpha"
    assert not renamed.is_live()


def test_a_renamed_run_resumes_exactly(tmp_path: Path) -> None:
    record(tiny_config(tmp_path, "run.name=a", "ppo.iterations=2"))
    renamed = rename_run(RunFolder(tmp_path / "runs/a"), "b")
    resumed = record(tiny_config(tmp_path), resume=renamed.root)
    assert [(start.name, start.resumed_at) for start in resumed.of(RunStarted)] == [("b", 2)]
    assert load_config(renamed.config).run.name == "b"
    assert resumed.of(RunEnded)[0].exit_code == 0
    record(tiny_config(tmp_path, "run.name=whole"))
    assert outcome(renamed.root) == outcome(tmp_path / "runs/whole")
    assert [run.name for run in list_runs(tmp_path / "runs")] == ["b", "whole"]


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "../b", "two words", "b\n", "b\x00"])
def test_a_name_that_breaks_the_rule_is_refused_with_the_rule(tmp_path: Path, name: str) -> None:
    folder = make(tmp_path, "alpha")
    with pytest.raises(UsageError, match=r"is not a name for a run: it must not be empty, and must be letters, digits"):
        rename_run(folder, name)
    assert names(tmp_path) == ["alpha"]


@pytest.mark.parametrize("taken", ["other", "alpha", "a-file"])
def test_a_name_in_use_and_one_too_long_for_the_file_system_are_refused(tmp_path: Path, taken: str) -> None:
    folder, other = make(tmp_path, "alpha"), make(tmp_path, "other")
    (tmp_path / "a-file").write_text("")
    with pytest.raises(UsageError, match=f"run '{taken}' exists already: choose another name"):
        rename_run(folder, taken)
    with pytest.raises(StorageError, match=r"cannot rename .* File name too long"):
        rename_run(folder, "x" * 300)
    assert names(tmp_path) == ["alpha", "other"]
    assert other.events.read_text() == "the journal of other"


@pytest.mark.parametrize("content", [None, "", "not TOML [", "run = 5\n"])
def test_a_run_whose_configuration_is_damaged_can_be_renamed(tmp_path: Path, content: str | None) -> None:
    folder = make(tmp_path, "alpha")
    if content is None:
        folder.config.unlink()
    else:
        folder.config.write_text(content)
    renamed = rename_run(folder, "beta")
    assert names(tmp_path) == ["beta"]
    assert (renamed.config.read_text() if renamed.config.exists() else None) == content


def test_a_run_that_is_being_trained_or_missing_is_neither_renamed_nor_trashed(tmp_path: Path) -> None:
    folder = make(tmp_path, "alpha")
    with folder.lock():
        for action in (lambda: rename_run(folder, "beta"), lambda: trash_run(folder)):
            with pytest.raises(UsageError, match=r"run 'alpha' is being trained by process \d+: stop it first"):
                action()
    gone = RunFolder(tmp_path / "gone")
    for action in (lambda: rename_run(gone, "beta"), lambda: trash_run(gone)):
        with pytest.raises(StorageError, match="gone"):
            action()
    assert names(tmp_path) == ["alpha"]
    assert list(tmp_path.iterdir()) == [folder.root]


def test_trashed_runs_are_unlisted_and_all_kept_even_with_equal_names(tmp_path: Path) -> None:
    paths = []
    for number in range(3):
        folder = make(tmp_path, "alpha")
        folder.events.write_text(str(number))
        paths.append(trash_run(folder))
        assert names(tmp_path) == []
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [
        ".trash/alpha",
        ".trash/alpha.2",
        ".trash/alpha.3",
    ]
    assert [RunFolder(path).events.read_text() for path in paths] == ["0", "1", "2"]
