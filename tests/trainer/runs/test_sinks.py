"""Progress of a phase for other processes, and trackers: fresh, cheap, and never a reason for a run to fail."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from preference_samples import labelled, reward_config
from run_kinds_helper import HELD_OUT, STEP, dpo_evaluation, dpo_step, human, reward_step
from runs_helper import Recorder, tiny_config

from trainer.config.loading import parse_overrides
from trainer.config.pairs import DPOConfig
from trainer.config.problems import validate_as
from trainer.engine.training import train
from trainer.errors import UsageError
from trainer.events import Evaluation, Event, Iteration, Phase, PhaseProgress, StateChanged
from trainer.runs.folder import RunFolder
from trainer.runs.sinks import ProgressFile, build_trackers, metrics, read_progress


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
        b"[" * 100_000,
        b'{"event": "phase"}',
        b'{"event": "state", "state": "training"}',
        b'{"event": "phase", "iteration": 1, "phase": "update", "done": "1", "total": 2}',
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


NAMES = ("tensorboard", "wandb", "trackio")
MODULES = {"tensorboard": "tensorboardX", "wandb": "wandb", "trackio": "trackio"}


def iteration(number: int, **values: Any) -> Iteration:
    numbers: dict[str, Any] = {
        f.name: i + 0.5 for i, f in enumerate(dataclasses.fields(Iteration)) if f.type == "float"
    }
    numbers |= {f.name: i for i, f in enumerate(dataclasses.fields(Iteration)) if f.type == "int"}
    return Iteration(**(numbers | {"seconds": {"generate": 1.5}, "iteration": number} | values))


def evaluation(number: int) -> Evaluation:
    numbers = dict.fromkeys(("score_mean", "score_std", "kl", "response_length", "truncated", "seconds"), 0.5)
    return Evaluation(iteration=number, prompts=16, **numbers)


class FakeLibrary(ModuleType):
    """Stand-in for each of the three libraries that keeps what they would have recorded, by step."""

    def __init__(self) -> None:
        super().__init__("fake")
        self.started: dict[str, Any] = {}
        self.points: dict[int, dict[str, float]] = {}
        self.finished = 0
        self.error: Exception | None = None
        self.close = self.finish
        self.Settings = SimpleNamespace

    def SummaryWriter(self, **arguments: Any) -> FakeLibrary:  # noqa: N802
        return self.init(**arguments)

    def init(self, **arguments: Any) -> FakeLibrary:
        self.started = arguments
        self.trouble()
        return self

    def log(self, values: dict[str, float], step: int) -> None:
        self.trouble()
        self.points.setdefault(step, {}).update(values)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.log({name: value}, step)

    def finish(self) -> None:
        self.trouble()
        self.finished += 1

    def trouble(self) -> None:
        if self.error is not None:
            raise self.error


Install = Callable[[str], FakeLibrary]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    def put(name: str) -> FakeLibrary:
        library = FakeLibrary()
        monkeypatch.setitem(sys.modules, MODULES[name], library)
        return library

    return put


BOTH = {"likes": 0.5, "length": math.nan, "model/one": -1.0}
EVALUATED = {
    "eval/prompts": 16, "eval/score_mean": 0.5, "eval/score_std": 0.5, "eval/kl": 0.5, "eval/response_length": 0.5,
    "eval/truncated": 0.5, "eval/seconds": 0.5, "eval/unscored": 0.0, "eval/memory_bytes": 0,
}  # fmt: skip
FOUND = {"win_rate": 0.62, "win_rate_low": 0.5, "best_of_score": 0.7, "explained_variance": 0.41, "score_low": 0.4}


def test_metrics_are_all_the_finite_numbers_of_an_iteration_with_seconds_and_memory_by_phase() -> None:
    numbers = metrics(dataclasses.replace(iteration(3), memory={"update": 7}))
    apart = {"iteration", "seconds", "parts", "memory", "ranks", "calibration", "difficulty"}
    fields = {f.name for f in dataclasses.fields(Iteration)} - apart
    assert set(numbers) == fields | {"seconds/generate", "memory/update"}
    assert numbers["memory/update"] == 7
    assert numbers["seconds/generate"] == 1.5
    assert numbers["kl"] == iteration(3).kl
    numbers = metrics(iteration(1, kl=math.nan, grad_norm=math.inf, seconds={"update": math.nan, "score": 2.0}))
    assert not {"kl", "grad_norm", "seconds/update"} & set(numbers)
    assert numbers["seconds/score"] == 2.0


@pytest.mark.parametrize(
    ("event", "expected"),
    {
        "an evaluation": (evaluation(3), EVALUATED),
        "its other results, but not how it was made": (
            dataclasses.replace(evaluation(3), best_of=4, averaged=True, **FOUND),
            EVALUATED | {f"eval/{name}": value for name, value in FOUND.items()},
        ),
        "more than one source": (
            dataclasses.replace(evaluation(3), parts=BOTH),
            EVALUATED | {"eval/parts/likes": 0.5, "eval/parts/model/one": -1.0},
        ),
        "a step of a reward model": (reward_step(3), STEP | {"tokens": 9000}),
    }.values(),
)
def test_metrics_of_other_events(event: Any, expected: dict[str, float]) -> None:
    assert metrics(event) == expected


def test_scores_by_source_and_the_results_of_other_kinds_have_names_of_their_own() -> None:
    parts = {name: value for name, value in metrics(iteration(3, parts=BOTH)).items() if "parts" in name}
    assert parts == {"parts/likes": 0.5, "parts/model/one": -1.0}
    assert not any("parts" in name for name in metrics(iteration(3, parts={"likes": 0.5})))
    assert metrics(dpo_step(3))["chosen_reward"] == 0.21
    held_out = metrics(dpo_evaluation(3))
    assert held_out.items() >= {f"held_out/{name}": value for name, value in HELD_OUT.items()}.items()
    assert held_out["held_out/kl"] == 0.0134
    assert not set(held_out) & set(metrics(evaluation(3))), "a run of DPO has both at one step"
    human_numbers = metrics(human(3))
    assert human_numbers["eval/human_win_rate"] == 0.6125
    assert all(name.startswith("eval/human_") for name in human_numbers)


def test_wandb_drops_late_steps_so_a_past_judgement_is_recorded_at_the_present_step(
    install: Install, tmp_path: Path
) -> None:
    library = install("wandb")
    [tracker] = build_trackers(["wandb"], "run-1", tmp_path, {})
    for event in (iteration(1), iteration(2), human(1), iteration(3)):
        tracker.emit(event)
    assert library.points[2]["eval/human_win_rate"] == 0.6125
    assert "eval/human_win_rate" not in library.points[1]
    assert 3 in library.points


@pytest.mark.parametrize("name", NAMES)
def test_each_tracker_records_by_iteration_and_is_finished_once(name: str, install: Install, tmp_path: Path) -> None:
    library = install(name)
    [tracker] = build_trackers([name], "run-1", tmp_path, {"ppo": {"gamma": 1.0}})
    for event in (StateChanged(state="training"), iteration(1), iteration(2), evaluation(2)):
        tracker.emit(event)
    tracker.close()
    assert library.points == {1: metrics(iteration(1)), 2: metrics(iteration(2)) | metrics(evaluation(2))}
    assert library.finished == 1
    if name != "tensorboard":
        expected = {"project": "ppo-workbench", "name": "run-1", "config": {"ppo": {"gamma": 1.0}}}
        assert library.started.items() >= expected.items()
    if name == "wandb":  # into the run, and not onto the screen
        assert library.started["dir"] == str(tmp_path)
        assert vars(library.started["settings"]) == {"console": "off", "silent": True}


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_tracker_writes_through_no_link_in_the_run(name: str, install: Install, tmp_path: Path) -> None:
    library = install(name)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=r"does not start: .*a link or a file blocks a folder"):
        build_trackers([name], "a", tmp_path, {})
    assert library.started == {}


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_package_names_the_extra_that_brings_it(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, MODULES[name], None)
    with pytest.raises(UsageError, match=rf"'{name}' is not installed: pip install 'ppo-workbench\[{name}\]'"):
        build_trackers([name], "run-1", tmp_path, {})


@pytest.mark.parametrize("name", NAMES)
def test_a_tracker_that_does_not_start_is_an_error_of_one_line(name: str, install: Install, tmp_path: Path) -> None:
    install(name).error = RuntimeError("no API key\nlog in first")
    with pytest.raises(UsageError, match=rf"'{name}' does not start: no API key log in first; .*leave it out"):
        build_trackers([name], "run-1", tmp_path, {})


def test_trackers_that_did_start_are_finished_when_the_next_one_does_not(install: Install, tmp_path: Path) -> None:
    first, second = install("wandb"), install("trackio")
    second.error = RuntimeError("no")
    with pytest.raises(UsageError):
        build_trackers(["wandb", "trackio"], "run-1", tmp_path, {})
    assert first.finished == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_tracker_that_fails_later_causes_one_warning_and_is_tried_again(
    name: str, install: Install, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    library = install(name)
    [tracker] = build_trackers([name], "run-1", tmp_path, {})
    library.error = ConnectionError("network is\nunreachable")
    tracker.emit(iteration(1))
    tracker.emit(iteration(2))
    library.error = None
    tracker.emit(iteration(3))
    library.error = ConnectionError("gone again")
    tracker.close()
    [record] = caplog.records
    assert (record.name, record.levelno) == ("trainer", logging.WARNING)
    assert record.getMessage().startswith(f"tracker {name}: network is unreachable; ")
    assert list(library.points) == [3]


def test_tensorboard_files_hold_the_points(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event as Record

    [tracker] = build_trackers(["tensorboard"], "run-1", tmp_path, {})
    tracker.emit(iteration(4))
    tracker.close()
    [file] = (tmp_path / "tensorboard").iterdir()
    data, points = file.read_bytes(), {}
    while data:  # a record is its length (8 bytes), a checksum (4), the message, a checksum (4)
        (length,) = struct.unpack_from("<Q", data)
        record = Record.FromString(data[12 : 12 + length])
        points |= {(value.tag, record.step): value.simple_value for value in record.summary.value}
        data = data[16 + length :]
    assert points == {(name, 4): value for name, value in metrics(iteration(4)).items()}


def test_runs_of_reward_models_and_of_dpo_have_trackers_too(install: Install, tmp_path: Path) -> None:
    library = install("trackio")
    config = reward_config(tmp_path, "run.name=liked", 'run.trackers=["trackio"]')
    train(config, preferences=labelled(24))
    assert library.started["name"] == "liked"
    assert library.started["config"]["train"]["batch_size"] == 8
    assert library.finished == 1
    assert {"loss", "accuracy", "lead", "learning_rate"} <= set(library.points[1])
    assert {"held_out/accuracy", "held_out/log_loss"} <= set(library.points[0])

    library = install("trackio")
    where = [f"model.path={tmp_path / 'model'}", f"run.dir={tmp_path / 'runs'}", "run.name=preferred"]
    overrides = parse_overrides([*where, 'run.trackers=["trackio"]', "train.batch_size=8"], DPOConfig)
    train(validate_as(DPOConfig, overrides), preferences=labelled(24))
    assert (library.started["name"], library.finished) == ("preferred", 1)
    assert {"chosen_reward", "loss"} <= set(library.points[1])
    assert {"held_out/kl", "held_out/accuracy"} <= set(library.points[0])
