"""Progress of a phase for other processes: fresh, cheap, gone at the end, and never a reason for a run to fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from runs_helper import Recorder, tiny_config
from scripted_run import iteration

from trainer.engine.training import train
from trainer.events import Event, Phase, PhaseProgress
from trainer.runs.folder import RunFolder
from trainer.runs.sinks import ProgressFile, read_progress


def progress(done: int, phase: Phase = "generate", iteration: int = 1) -> PhaseProgress:
    return PhaseProgress(iteration=iteration, phase=phase, done=done, total=100)


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "progress.json"


def test_the_file_holds_the_newest_progress_until_it_is_closed(path: Path) -> None:
    clock = Clock()
    sink = ProgressFile(path, clock)
    assert read_progress(path) is None
    for done in range(5):
        sink.emit(progress(done))
        assert read_progress(path) == progress(done)
        clock.now += 1
    sink.emit(iteration(1))
    assert read_progress(path) == progress(4), "what the journal keeps is not for this file"
    sink.close()
    assert list(path.parent.iterdir()) == []


def test_a_phase_is_written_four_times_a_second_at_most_and_its_beginning_always(path: Path) -> None:
    clock, seen = Clock(), set()
    sink = ProgressFile(path, clock)
    for done in range(100):  # one second
        sink.emit(progress(done))
        seen.add(read_progress(path))
        clock.now += 0.01
    assert len(seen) == 4
    sink.emit(progress(0, "score"))
    assert read_progress(path) == progress(0, "score")


def test_leftovers_of_a_killed_process_are_gone_when_a_run_resumes_and_a_write_that_fails_harms_nothing(
    path: Path,
) -> None:
    path.write_text(json.dumps(progress(7).as_dict()))
    ProgressFile(path)
    assert read_progress(path) is None
    sink = ProgressFile(path.parent / "gone" / "progress.json")
    sink.emit(progress(1))
    sink.close()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"event": "pha',
        b"\xff",
        b"[]",
        b"[" * 100_000,
        b'{"event": "phase"}',
        b'{"event": ["phase"]}',
        b'{"event": "state", "state": "training"}',
        b'{"event": "phase", "iteration": 1, "phase": "update", "done": "1", "total": 2}',
        b'{"event": "phase", "iteration": 1, "phase": "update", "done": 1, "total": null}',
    ],
)
def test_anything_else_in_its_place_is_not_progress(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert read_progress(path) is None


def test_a_run_shows_its_progress_while_it_trains_and_leaves_none(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs" / "a")
    seen: list[tuple[Event, Any]] = []

    class Watcher(Recorder):
        def close(self) -> None:
            assert folder.progress.exists()

    def watch(event: Event) -> None:
        if isinstance(event, PhaseProgress):
            seen.append((event, read_progress(folder.progress)))

    train(tiny_config(tmp_path, "run.name=a", "ppo.iterations=1"), sinks=[Watcher(watch)])
    found = [there for _, there in seen if there is not None]
    assert found
    assert all(there in [event for event, _ in seen] for there in found)
    assert not list(folder.root.glob("progress*"))
