"""A run's folder under attack and by accident: links, moved or deleted files; and renamed or trashed as a whole."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from dpo_helper import dpo_config
from preference_samples import labelled, reward_config
from runs_helper import Killed, Recorder, outcome, record, tiny_config

from trainer.config import load_config, validate
from trainer.engine.training import train
from trainer.errors import RewardError, StorageError, UsageError
from trainer.events import CheckpointSaved, Event, Iteration, RewardModelStep, RunEnded, RunStarted
from trainer.reward_model.predictions import HELD_OUT
from trainer.runs.folder import RunFolder, create_run, rename_run, run_folders, trash_run
from trainer.runs.listing import list_runs
from workbench.system import output

Watch = Callable[[Event], None]


def runner(train: Callable[..., object], config: Callable[..., Any], *always: str) -> Callable[..., Recorder]:
    def run(folder: Path, *settings: str, watch: Watch = lambda event: None, resume: Path | None = None) -> Recorder:
        """Run three iterations or steps, or what is left of them."""
        names = () if resume else ("run.name=a",)
        recorder = Recorder(watch)
        train(config(folder, *always, *names, *settings), resume=resume, sinks=[recorder])
        return recorder

    return run


ppo = runner(train, tiny_config)
reward_model = runner(partial(train, preferences=labelled(30)), reward_config, "checkpoint.every=1")
dpo = runner(partial(train, preferences=labelled(30)), dpo_config, "checkpoint.every=1")
KINDS = pytest.mark.parametrize("run", [ppo, reward_model], ids=["ppo", "reward_model"])
PLACES = ["samples", "checkpoints", "control", "control/answers", "events.jsonl", "lock"]


@pytest.fixture(autouse=True)
def _looks_at_every_small_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the folder at every step: a step of these runs is shorter than the time between two checks."""
    monkeypatch.setattr("trainer.engine.control.INBOX_SECONDS", 0.0)


def is_step(event: Event, number: int) -> bool:
    return isinstance(event, Iteration | RewardModelStep) and event.iteration == number


@pytest.fixture
def thesis(tmp_path: Path) -> Path:
    """Make a folder that is not the program's, with files named like the program's own."""
    (folder := tmp_path / "thesis").mkdir()
    for name in ("thesis.tex", "step-000001", ".step-000002.tmp", "1-2-3.json", ".x.json.tmp", "events.jsonl"):
        (folder / name).write_text(f"three years of {name}")
    (folder / ".step-000001.removed").mkdir()
    (folder / ".step-000001.removed" / "chapter").write_text("one")
    return folder


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return every file below `folder` with its permissions."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
    }


# Links


@KINDS
@pytest.mark.parametrize("place", PLACES)
def test_a_run_with_links_in_place_of_its_own_files_is_not_resumed_and_the_error_has_a_way_out(
    run: Callable[..., Recorder], place: str, thesis: Path, tmp_path: Path
) -> None:
    config = tiny_config(tmp_path, "run.name=a") if run is ppo else reward_config(tmp_path, "run.name=a")
    folder = create_run(config, "tiny")
    path = folder.root / place
    path.parent.mkdir(exist_ok=True)
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to(thesis if "." not in place and place != "lock" else thesis / "thesis.tex")
    before, ours = tree(thesis), tree(folder.root)
    with pytest.raises(StorageError, match=rf"^'{path}' is a link to '{path.readlink()}'; the run needs a real "):
        run(tmp_path, resume=folder.root)
    assert (tree(thesis), tree(folder.root)) == (before, ours), "nothing is touched"


@KINDS
def test_links_wherever_a_run_writes_are_replaced_and_never_followed(
    run: Callable[..., Recorder], thesis: Path, tmp_path: Path
) -> None:
    def kill(event: Event) -> None:
        if is_step(event, 2):
            raise Killed

    with pytest.raises(Killed):
        run(tmp_path, watch=kill)
    root = tmp_path / "runs" / "a"
    files = ["config.toml", "best.json", "progress.json", HELD_OUT]
    temporary = [name for file in files for name in (f".{file}.tmp", f"{Path(file).stem}.tmp")]
    names = [*files, *temporary, "control/1-2-3.json", "control/.x.json.tmp", "control/answers/1-2-3.json"]
    names += [f"samples/{name}step-000002.parquet{end}" for name, end in (("", ""), (".", ".tmp"))]
    (root / "control" / "answers").mkdir(exist_ok=True)
    (root / "samples").mkdir(exist_ok=True)
    saved_config = (root / "config.toml").read_text()
    for name in names:
        (root / name).unlink(missing_ok=True)
        (root / name).symlink_to(thesis / "thesis.tex")
    for name in ("step-000002", ".step-000002.tmp", ".step-000003.tmp", ".step-000009.removed"):
        (root / "checkpoints" / name).symlink_to(thesis)
    before = tree(thesis)
    settings = ("checkpoint.keep=1",) if run is reward_model else ("checkpoint.keep=1", "eval.every=1")
    recorder = run(tmp_path, *settings, resume=root)
    assert recorder.of(RunEnded)[0].state == "done"
    assert tree(thesis) == before
    assert (root / "config.toml").read_text() != saved_config
    written = ["config.toml", "samples/step-000002.parquet", "best.json"] if run is ppo else ["config.toml", HELD_OUT]
    assert not [name for name in written if (root / name).is_symlink()]
    assert not [path for path in (root / "checkpoints").iterdir() if path.is_symlink()]


def test_a_run_whose_whole_folder_is_reached_by_a_link_continues(tmp_path: Path) -> None:
    ppo(tmp_path, "ppo.iterations=1")
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs" / "a").rename(tmp_path / "disk" / "a")
    (tmp_path / "runs" / "a").symlink_to(tmp_path / "disk" / "a")
    assert ppo(tmp_path, "ppo.iterations=2", resume=tmp_path / "runs" / "a").of(RunEnded)[0].state == "done"
    assert (tmp_path / "runs" / "a").is_symlink()


@KINDS
def test_a_link_that_comes_while_a_run_trains_ends_it_before_anything_is_written_there(
    run: Callable[..., Recorder], thesis: Path, tmp_path: Path
) -> None:
    place = tmp_path / "runs" / "a" / "checkpoints"
    before = tree(thesis)

    def swap(event: Event) -> None:
        if is_step(event, 2):
            place.rename(place.with_name("moved"))
            place.symlink_to(thesis)

    with pytest.raises(StorageError, match="a link or a file blocks a folder that the program needs"):
        run(tmp_path, watch=swap)
    assert tree(thesis) == before


@KINDS
def test_hidden_files_of_other_programs_stay_and_stop_no_checkpoint(
    run: Callable[..., Recorder], tmp_path: Path
) -> None:
    strays = [".DS_Store", ".syncthing.step-000001.tmp", ".step.swp", ".x.tmp", ".stfolder/marker", ".dir.tmp/marker"]
    strays += [".step-1.tmp", ".step-000001.tmp.part", ".a.removed"]

    def sync(event: Event) -> None:
        if isinstance(event, RunStarted):
            for folder in ("checkpoints", "samples", "control"):
                for stray in strays:
                    (path := Path(event.folder) / folder / stray).parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(folder)

    recorder = run(tmp_path, "checkpoint.keep=1", watch=sync)
    assert recorder.of(RunEnded)[0].state == "done"
    assert len(recorder.of(CheckpointSaved)) >= 3
    run(tmp_path, resume=tmp_path / "runs" / "a")
    for folder in ("checkpoints", "samples", "control"):
        for stray in strays:
            assert (tmp_path / "runs" / "a" / folder / stray).read_text() == folder


# A folder that is lost


@KINDS
def test_a_folder_that_is_deleted_ends_the_run_with_the_reason_and_does_not_come_back(
    run: Callable[..., Recorder], tmp_path: Path
) -> None:
    recorder = Recorder(lambda event: shutil.rmtree(tmp_path / "runs" / "a") if is_step(event, 2) else None)
    with pytest.raises(StorageError) as failure:
        run(tmp_path, "checkpoint.every=1", watch=recorder.emit)
    (ended,) = recorder.of(RunEnded)
    assert (ended.state, ended.exit_code, ended.reason) == ("failed", 3, str(failure.value))
    assert ended.iteration <= 3
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_runs_own_error_is_not_hidden_by_a_lost_folder(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, "run.name=a")
    (tmp_path / "rewards.py").write_text(
        f"import shutil\ndef score(**_):\n    shutil.rmtree({str(tmp_path / 'runs' / 'a')!r}, True)\n    return 1\n"
    )
    with pytest.raises(RewardError):
        record(config)
    assert list((tmp_path / "runs").iterdir()) == []


# Who may read and steer


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@KINDS
@pytest.mark.parametrize("shared", [False, True])
def test_files_of_a_run_are_private_to_its_owner_unless_shared(
    run: Callable[..., Recorder], shared: bool, tmp_path: Path
) -> None:
    found: dict[str, int] = {}
    texts = ["events.jsonl", "samples/step-000001.parquet"] if run is ppo else ["events.jsonl", HELD_OUT]

    def look(event: Event) -> None:
        if is_step(event, 2):
            root = tmp_path / "runs" / "a"
            found.update({name: mode(root / name) for name in ("control", "lock", "progress.json", *texts)})

    umask = os.umask(0o022)
    try:
        run(tmp_path, f"run.shared={str(shared).lower()}", watch=look)
    finally:
        os.umask(umask)
    public = 0o644 if shared else 0o600
    expected = {"control": 0o700, "lock": 0o600, "progress.json": public, **dict.fromkeys(texts, public)}
    assert found == expected


def test_a_run_that_others_may_read_becomes_private_when_resumed_and_public_on_request(tmp_path: Path) -> None:
    ppo(tmp_path, "ppo.iterations=1")
    root = tmp_path / "runs" / "a"
    for name in ("lock", "events.jsonl"):
        (root / name).chmod(0o644)
    (root / "control").chmod(0o755)
    ppo(tmp_path, "ppo.iterations=2", resume=root)
    assert [mode(root / name) for name in ("lock", "events.jsonl", "control")] == [0o600, 0o600, 0o700]
    ppo(tmp_path, "ppo.iterations=3", "run.shared=true", resume=root)
    assert [mode(root / name) for name in ("lock", "events.jsonl", "control")] == [0o600, 0o644, 0o700]


def test_a_crash_log_is_private_to_its_owner_and_replaces_a_link(
    tmp_path: Path, thesis: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "crash.log").symlink_to(thesis / "thesis.tex")
    before = tree(thesis)
    output.crash(RuntimeError("mine"), tmp_path)
    assert mode(tmp_path / "crash.log") == 0o600
    assert "RuntimeError: mine" in (tmp_path / "crash.log").read_text()
    assert tree(thesis) == before
    assert "this is a bug" in capsys.readouterr().err


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
    with pytest.raises(UsageError, match=r"is not a name for a run: it must be letters, digits"):
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
