"""A run's folder has one owner, one name and one trainer, and the list of runs shows the state of each."""

from __future__ import annotations

import errno
import json
import math
import os
import platform
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from run_folders import checkpoint, config
from runs_helper import newest_checkpoint
from scripted_run import ended, iteration, started

from trainer.config import load_config
from trainer.errors import StorageError, UsageError, cannot_write
from trainer.events import Alarm, Event
from trainer.runs.checkpoint_files import checkpoints, keep_for_others, prune_checkpoints
from trainer.runs.folder import RunFolder, check_name_is_free, create_run, open_run, trash_run, versions
from trainer.runs.journal import Journal
from trainer.runs.listing import RunSummary, list_runs


def journal(folder: RunFolder, *events: Event) -> None:
    sink = Journal(folder.events)
    for event in events:
        sink.emit(event)
    sink.close()


def summary(folder: RunFolder) -> RunSummary:
    [found] = list_runs(folder.root.parent)
    return found


@contextmanager
def other_trainer(folder: RunFolder) -> Iterator[subprocess.Popen[str]]:
    """Start a process that holds the run's lock until it is killed."""
    script = """
import pathlib, sys
from trainer.runs.folder import RunFolder
with RunFolder(pathlib.Path(sys.argv[1])).lock():
    print("locked", flush=True)
    sys.stdin.read()
"""
    command = [sys.executable, "-c", script, folder.root]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return create_run(config(tmp_path, "alpha"), "quickstart")


@pytest.mark.parametrize(
    ("preset", "name"),
    [
        ("quickstart", "quickstart-0008"),  # after the highest one, so that no old name returns
        ("my/own config.toml", "own-config-0001"),
        ("qwen3-0.6b", "qwen3-0.6b-0001"),
        ("my/own space/config.toml", "own-space-0001"),
        ("config.toml", "here-0001"),  # it says nothing, but its folder does
        ("/config.toml", "run-0001"),
        ("..", "run-0001"),
        ("", "run-0001"),
    ],
)
def test_a_run_without_a_name_is_numbered_after_its_preset_or_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str, name: str
) -> None:
    for there in ("here", "quickstart-0007", "quickstart-0099-copy", "other-0500"):
        (tmp_path / there).mkdir()
        (tmp_path / there / "config.toml").touch()
    monkeypatch.chdir(tmp_path / "here")
    assert create_run(config(tmp_path), preset).root == tmp_path / name


def test_runs_that_start_at_once_get_different_names(tmp_path: Path) -> None:
    gate = threading.Barrier(8)

    def start(_: int) -> str:
        gate.wait()
        return create_run(config(tmp_path), "quickstart").name

    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(start, range(8)))
    assert sorted(names) == [f"quickstart-{number:04d}" for number in range(1, 9)]


def test_the_saved_configuration_loads_as_what_ran_with_its_name(tmp_path: Path) -> None:
    wanted = config(tmp_path, iterations=42)
    folder = create_run(wanted, "quickstart")
    saved = load_config(folder.config)
    assert saved.run.name == folder.name == "quickstart-0001"
    assert saved.model_copy(update={"run": wanted.run}) == wanted
    found, text = versions(), folder.config.read_text()
    assert list(found) == ["ppo-workbench", "mlx", "mlx-lm", "transformers", "python"]
    assert (found["python"], found["mlx"][:2]) == (platform.python_version(), "0.")
    assert all(f"# {name} {version}\n" in text for name, version in found.items())


def test_a_name_in_use_is_refused_also_before_the_folder_is_made_and_the_run_is_left_alone(folder: RunFolder) -> None:
    before, runs_dir = folder.config.read_bytes(), folder.root.parent
    for start in (check_name_is_free, lambda named: create_run(named, "quickstart")):
        with pytest.raises(UsageError, match=r"run\.name = 'alpha' is in use .*another name.*--resume alpha"):
            start(config(runs_dir, "alpha", iterations=99))
    check_name_is_free(config(runs_dir, "beta"))
    check_name_is_free(config(runs_dir))
    with pytest.raises(StorageError, match="File name too long"):
        check_name_is_free(config(runs_dir, "x" * 300))
    assert list(runs_dir.iterdir()) == [folder.root]
    assert folder.config.read_bytes() == before


@pytest.mark.parametrize("name", ["", "alpha"])
def test_a_runs_folder_that_cannot_be_made_is_a_storage_error_with_advice_that_helps(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot write .*; .*run\.dir=FOLDER"):
        create_run(config(tmp_path / "file" / "runs", name), "quickstart")
    with pytest.raises(StorageError, match=r"cannot write '/proc/x': No such file or directory; check the path, or"):
        create_run(config(Path("/proc/x"), name), "quickstart")


@pytest.mark.parametrize("was_there", [False, True])
def test_the_name_of_a_run_whose_configuration_cannot_be_written_stays_free(
    was_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if was_there:
        (tmp_path / "alpha").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr("trainer.runs.folder.config_text", fill_disk)
        with pytest.raises(StorageError, match="No space left on device"):
            create_run(config(tmp_path, "alpha"), "quickstart")
        for _ in range(2):
            with pytest.raises(StorageError, match="No space left on device"):
                create_run(config(tmp_path, ""), "quickstart")
    assert create_run(config(tmp_path, "alpha"), "quickstart").name == "alpha"
    assert [create_run(config(tmp_path, ""), "quickstart").name for _ in range(2)] == [
        "quickstart-0001",
        "quickstart-0002",
    ]


def test_a_run_opens_by_name_and_by_path_and_a_misspelt_one_is_answered_with_near_names(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_run(config(folder.root.parent, "omega"), "quickstart")
    assert open_run("alpha", folder.root.parent) == open_run(folder.root, Path("elsewhere")) == folder
    with pytest.raises(UsageError, match=r"no run 'alpah' in '.*': there is 'alpha'$"):
        open_run("alpah", folder.root.parent)
    monkeypatch.chdir(folder.root)
    assert open_run(".", Path("elsewhere")) == folder
    assert open_run(".", Path("elsewhere")).name == "alpha"


@pytest.mark.parametrize("name", ["", "..", "x" * 300, "a/b"])
def test_anything_but_a_run_is_a_usage_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="no run was started there yet"):
        open_run(name, tmp_path / "runs")


def test_a_lock_is_held_once_and_names_the_process(folder: RunFolder) -> None:
    assert not folder.is_live()
    with folder.lock():
        assert folder.is_live()
        with (
            pytest.raises(UsageError, match=rf"run 'alpha' is being trained by process {os.getpid()}: "),
            folder.lock(),
        ):
            pass
        assert folder.is_live()
        (folder.root / "lock").write_bytes(b"")  # as before the process has written its number
        with pytest.raises(UsageError, match="run 'alpha' is in use by another process: try again"), folder.lock():
            pass
    assert not folder.is_live()
    with folder.lock():
        assert folder.is_live()


def test_a_lock_ends_with_a_killed_process(folder: RunFolder) -> None:
    with other_trainer(folder) as process:
        assert folder.is_live()
        with pytest.raises(UsageError, match=f"process {process.pid}"), folder.lock():
            pass
        assert summary(folder).state == "training"
        process.kill()
        process.wait()
        assert not folder.is_live()
        with folder.lock():
            pass


def test_asking_whether_a_run_is_live_never_keeps_a_trainer_out(folder: RunFolder) -> None:
    with folder.lock():  # makes the file
        pass
    done = threading.Event()
    answers: list[bool] = []

    def ask() -> None:
        while not done.is_set():
            answers.append(folder.is_live())

    askers = [threading.Thread(target=ask) for _ in range(2)]
    for asker in askers:
        asker.start()
    try:
        for _ in range(300):
            with folder.lock():
                pass
    finally:
        done.set()
        for asker in askers:
            asker.join()
    assert answers


def test_an_error_inside_the_lock_passes_through_and_frees_it_and_a_folder_that_is_gone_takes_none(
    folder: RunFolder, tmp_path: Path
) -> None:
    with pytest.raises(OSError, match="mine"), folder.lock():
        raise OSError("mine")
    assert not folder.is_live()
    gone = RunFolder(tmp_path / "gone")
    assert not gone.is_live()
    with pytest.raises(StorageError, match="cannot lock run"), gone.lock():
        pass


SIX = [iteration(n, score_mean=s, kl=n / 2) for n, s in enumerate([9.0, 1.0, 2.0, 3.0, 4.0, 5.0], 1)]
TWO = [iteration(1, score_mean=1.0), iteration(2, score_mean=5.0)]


@pytest.mark.parametrize(
    ("events", "expected"),
    {
        "how far it came, and means of the last five": (
            [*SIX, ended(iteration=6)],
            {"state": "done", "iteration": 6, "iterations": 10, "score": 3.0, "kl": 2.0, "problem": ""},
        ),
        "one that ended while the second was evaluated": (
            [*TWO, ended("stopped", iteration=1)],
            {"state": "stopped", "iteration": 1, "score": 1.0},
        ),
        "no finite numbers": ([iteration(1, score_mean=math.nan, kl=math.inf)], {"score": None, "kl": None}),
        "one finite number": (
            [iteration(1, score_mean=math.nan, kl=math.inf), iteration(2, score_mean=2.0)],
            {"score": 2.0, "kl": 1.0},
        ),
        "a failure has its reason": (
            [*TWO, ended("failed", iteration=2, reason="disk full")],
            {"state": "failed", "problem": "disk full"},
        ),
        "no end": (TWO, {"state": "interrupted", "iteration": 2}),
        "a resumed one counts from its checkpoint, and forgets its old end": (
            [*TWO, iteration(3, score_mean=100.0), ended("stopped", iteration=3), started(resumed_at=2)],
            {"state": "interrupted", "iteration": 2, "score": 3.0},
        ),
    }.values(),
)
def test_a_summary_is_of_the_events_that_count(
    folder: RunFolder, events: list[Event], expected: dict[str, Any]
) -> None:
    journal(folder, started(), *events)
    found = summary(folder)
    assert {name: getattr(found, name) for name in expected} == expected
    assert (found.name, found.model) == ("alpha", "starter")
    assert found.started == pytest.approx(folder.config.stat().st_mtime, abs=60)
    with folder.lock():
        assert summary(folder).state == "training"


def test_a_summary_has_the_alarms_that_are_open_the_worst_first(folder: RunFolder) -> None:
    reported = Alarm(iteration=3, level="error", code="kl_high", message="far", evidence={}, advice="")
    journal(folder, started(), iteration(3), reported, ended(iteration=3))
    assert summary(folder).alarms == {"kl_high": "error"}
    journal(folder, started(resumed_at=3), iteration(30), ended(iteration=30))
    assert summary(folder).alarms == {}, "told 27 iterations ago"
    journal(folder, started(resumed_at=30), ended(iteration=3, alarms={"throughput": "warning", "step_nan": "error"}))
    assert list(summary(folder).alarms.items()) == [("step_nan", "error"), ("throughput", "warning")]


def test_runs_are_listed_by_name_without_hidden_folders_and_files_whatever_is_in_them(tmp_path: Path) -> None:
    create_run(config(tmp_path, "b"), "quickstart")
    for name in (".hidden", "a", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "config.toml").write_text('[model]\npath = "m"\n[ppo]\niterations = inf\n')
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "odd" / "events.jsonl").mkdir(parents=True)
    (tmp_path / "odd" / "config.toml").mkdir()
    found = {run.name: run for run in list_runs(tmp_path)}
    assert list(found) == ["a", "b", "empty", "odd"]
    assert found["empty"].problem
    assert found["odd"].problem
    assert list_runs(tmp_path / "nowhere") == []
    unborn = found["b"]  # listed from its configuration
    assert (unborn.state, unborn.iteration, unborn.iterations, unborn.model) == ("interrupted", 0, 10, "starter")
    assert (unborn.score, unborn.kl, unborn.started) == (None, None, None)
    assert "no journal" in unborn.problem


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", ": it has no 'model'"),
        (b"\xff", "; fix the file"),
        (b"ppo = 3", ": it has no 'model'"),
        (b"[ppo]\niterations = 'x'", ": it has no 'model'"),
    ],
)
def test_a_damaged_configuration_is_a_problem_of_one_line(folder: RunFolder, content: bytes, reason: str) -> None:
    journal(folder, started(), iteration(1))
    folder.config.write_bytes(content)
    found = summary(folder)
    assert (found.iteration, found.iterations, found.model) == (1, 12, "starter")
    assert "config.toml" in found.problem
    assert found.problem.endswith(reason)
    assert "\n" not in found.problem


@pytest.mark.parametrize("content", [b"", b"\0\0\0", b"garbage\n" * 50_000, b'{"journal": 1}\n'])
def test_a_damaged_journal_is_a_problem_of_one_line(folder: RunFolder, content: bytes) -> None:
    folder.events.write_bytes(content)
    found = summary(folder)
    assert (found.state, found.iteration) == ("interrupted", 0)
    assert "has no events" in found.problem


def test_damage_at_the_end_of_a_journal_is_reported_with_the_origin_of_the_numbers(folder: RunFolder) -> None:
    journal(
        folder,
        started(),
        *(iteration(number, kl=number, score_mean=number) for number in range(1, 11)),
        ended(iteration=10),
    )
    assert (summary(folder).damaged, summary(folder).problem) == (False, "")
    lines = folder.events.read_bytes().splitlines(keepends=True)
    folder.events.write_bytes(b"".join(lines[:-3]) + b"".join(line[:40] + b"\0\n" for line in lines[-3:]))
    found = summary(folder)
    assert (found.state, found.iteration, found.kl, found.score, found.damaged) == ("interrupted", 8, 6.0, 6.0, True)
    assert found.problem == (
        "journal damaged near its end: 3 lines cannot be read; state and numbers are from the others, up to iteration 8"
    )
    folder.events.write_bytes(b"".join(lines)[:-5])
    assert summary(folder).problem.startswith("journal damaged near its end: 1 line cannot be read; state and numbers")
    with other_trainer(folder):
        assert (summary(folder).damaged, summary(folder).problem) == (False, ""), "its trainer is writing the line"


def test_the_newest_checkpoint_is_the_highest_number_and_folders_under_construction_are_none(folder: RunFolder) -> None:
    for name in (".step-000010.tmp", "step-000010.tmp", "step-10", "other"):
        checkpoint(folder, 10).rename(folder.checkpoints / name)
    assert checkpoints(folder) == ([], {})
    assert newest_checkpoint(folder) is None
    paths = [checkpoint(folder, number) for number in (20, 5, 1_000_000)]
    assert checkpoints(folder).paths == [paths[1], paths[0], paths[2]]
    assert newest_checkpoint(folder) == paths[2]


@pytest.mark.parametrize(
    ("file", "content", "damage"),
    [
        ("policy/adapters.safetensors", b"x" * 99, r"policy/adapters\.safetensors has 99 bytes instead of 100"),
        ("policy/adapters.safetensors", None, r"policy/adapters\.safetensors is missing"),
        ("state.json", None, r"state\.json is missing"),
        ("state.json", b'{"files": {"pol', r"state\.json cannot be read"),
        ("state.json", b'{"files": 3}', r"state\.json cannot be read"),
        ("state.json", b"[]", r"state\.json cannot be read"),
        ("state.json", b"{}", r"state\.json cannot be read"),
        ("state.json", b"[" * 100_000, r"state\.json cannot be read"),
        ("state.json", b'{"files": {"/nowhere/at-all": {"bytes": 1}}}', r"state\.json lists '/nowhere/at-all'"),
        ("state.json", b'{"files": {"policy": {"bytes": 1e999}}}', r"state\.json cannot be read"),
        ("state.json", b'{"files": {"%s": {"bytes": 1}}}' % (b"a" * 300), "a{59}… is missing"),
    ],
)
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_taken(
    folder: RunFolder, file: str, content: bytes | None, damage: str
) -> None:
    whole, damaged = checkpoint(folder, 5), checkpoint(folder, 10)
    if content is None:
        (damaged / file).unlink()
    else:
        (damaged / file).write_bytes(content)
    assert newest_checkpoint(folder) == whole
    found, problems = checkpoints(folder)
    [problem] = problems.values()
    assert found == [whole]
    assert re.search(f"'step-000010' ignored: {damage}", problem)
    assert prune_checkpoints(folder, 1) == [], "whole ones count, so that one always remains"


def test_a_checkpoint_that_its_run_deletes_while_it_is_looked_at_is_none(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, pruned = checkpoint(folder, 5), checkpoint(folder, 10)
    stat = Path.stat

    def stat_of_pruned(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        found = stat(path, follow_symlinks=follow_symlinks)
        if path.is_relative_to(pruned) and path.suffix == ".safetensors":
            pruned.rename(folder.checkpoints / ".step-000010.removed")
        return found

    monkeypatch.setattr(Path, "stat", stat_of_pruned)
    (pruned / "state.json").write_text(
        json.dumps({"files": {name: {"bytes": 100} for name in ("policy/adapters.safetensors", "z")}})
    )
    assert checkpoints(folder).paths == [kept]


def test_pruning_keeps_the_newest_and_returns_the_deleted(folder: RunFolder) -> None:
    paths = [checkpoint(folder, number) for number in (5, 10, 15, 20)]
    assert prune_checkpoints(folder, 0) == []
    assert prune_checkpoints(folder, 4) == []
    assert prune_checkpoints(folder, 3) == paths[:1]
    assert prune_checkpoints(folder, 1) == paths[1:3]
    assert list(folder.checkpoints.iterdir()) == paths[3:]


def test_keeping_a_checkpoint_for_others_follows_no_link(folder: RunFolder, tmp_path: Path) -> None:
    old, _ = [checkpoint(folder, number) for number in (5, 10)]
    old.with_name(f".{old.name}.used").symlink_to(tmp_path / "planted")
    keep_for_others(old)
    assert not (tmp_path / "planted").exists()


def test_leftovers_of_a_pruning_that_ended_early_are_cleared_by_the_next(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = [checkpoint(folder, number) for number in (5, 10)][1]

    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("trainer.files.shutil.rmtree", refuse)
        with pytest.raises(StorageError, match=r"cannot delete old checkpoints: .*Permission denied"):
            prune_checkpoints(folder, 1)
    assert checkpoints(folder) == ([newest], {})
    assert prune_checkpoints(folder, 1) == []
    assert list(folder.checkpoints.iterdir()) == [newest]


def test_listing_runs_imports_no_tensor_library() -> None:
    script = "import sys, trainer.runs.folder; sys.exit(bool({'mlx', 'pyarrow', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


# A start that was killed before it wrote config.toml


@pytest.mark.parametrize(
    "left",
    [[], ["lock"], ["samples/", "lock"], ["samples/", "checkpoints/", "lock", ".config.toml.tmp", "pairs.sha256"]],
    ids=["folder", "lock", "samples", "all"],
)
def test_the_name_of_a_start_that_was_killed_is_free_and_there_is_nothing_to_resume(
    tmp_path: Path, left: list[str]
) -> None:
    (half := tmp_path / "half").mkdir()
    for name in left:
        (half / name).mkdir() if name.endswith("/") else (half / name).write_text("")
    with pytest.raises(UsageError, match=r"run 'half' was interrupted before it started: start it with --name half$"):
        open_run("half", tmp_path)
    named = config(tmp_path, "half")
    check_name_is_free(named)
    folder = create_run(named, "quickstart")
    assert sorted(path.name for path in half.iterdir() if path.name != "pairs.sha256") == [
        "checkpoints", "config.toml", "lock", "samples",
    ]  # fmt: skip
    assert open_run("half", tmp_path) == folder
    with pytest.raises(UsageError, match=r"is in use in .*--resume half"):
        create_run(named, "quickstart")


@pytest.mark.parametrize("name", ["notes.txt", "samples/step-000001.parquet", ".hidden", "checkpoints", "events.jsonl"])
def test_a_folder_with_anything_else_in_it_is_in_use_and_left_alone(tmp_path: Path, name: str) -> None:
    (path := tmp_path / "mine" / name).parent.mkdir(parents=True)
    path.write_text("mine")
    for start in (check_name_is_free, lambda named: create_run(named, "quickstart")):
        with pytest.raises(UsageError, match="is in use"):
            start(config(tmp_path, "mine"))
    assert [p for p in (tmp_path / "mine").rglob("*") if p.is_file()] == [path]


# Links, and other users


def test_a_run_is_not_moved_through_a_link(folder: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".trash").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="cannot move"):
        trash_run(folder)
    assert folder.config.is_file()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_file_system_without_locks_is_named(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(StorageError, match=r"its file system has no file locks; choose a local"), folder.lock():
        raise AssertionError
    assert not folder.is_live()


def test_the_run_of_another_user_is_live_while_its_progress_is_updated(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("trainer.runs.folder.open_file", refuse)
    assert not folder.is_live()
    folder.progress.write_text("{}")
    assert folder.is_live()
    assert summary(folder).state == "training"
    long_ago = folder.progress.stat().st_mtime - 120
    os.utime(folder.progress, (long_ago, long_ago))  # its trainer was killed
    assert not folder.is_live()
    with (
        pytest.raises(StorageError, match="only the user who started a run can train it; copy its folder"),
        folder.lock(),
    ):
        pass


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errno.ENOSPC, "No space left on device; free space"),
        (errno.EACCES, "Permission denied; change the permissions"),
        (errno.EFBIG, "File too large; raise the limit on the size of files (ulimit -f)"),
        (errno.EOWNERDEAD, "Owner died; check the disk, its free space and your permissions"),
        (RuntimeError("[save] failed\nand more"), "[save] failed; check the free space and your permissions"),
    ],
)
def test_the_advice_on_what_cannot_be_written_fits_the_cause(error: int | Exception, reason: str) -> None:
    raised = OSError(error, os.strerror(error)) if isinstance(error, int) else error
    assert str(cannot_write("'x'", raised, ", or so")) == f"cannot write 'x': {reason}, or so"
