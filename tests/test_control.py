"""A run that is told to stop does so within a step, keeps the last whole iteration, and goes on from there exactly."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest
from runs_helper import Recorder, acting, outcome, record, run_hurt, tiny_config, within, workspace

from trainer.control import Control, Interrupted
from trainer.events import CheckpointSaved, Iteration, PhaseProgress, RunEnded, RunStarted, StateChanged
from trainer.training import train

PHASES = ("generate", "score", "reward", "update", "evaluate")


def test_nothing_is_raised_before_a_request() -> None:
    Control().check()


def test_the_first_reason_to_stop_counts_and_an_abort_overrules_it() -> None:
    control = Control()
    control.stop("first")
    control.stop("second")
    with pytest.raises(Interrupted) as stopped:
        control.check()
    control.abort("enough")
    control.stop("third")
    with pytest.raises(Interrupted) as aborted:
        control.check()
    assert (stopped.value.reason, stopped.value.save) == ("first", True)
    assert (aborted.value.reason, aborted.value.save) == ("enough", False)


@pytest.mark.parametrize("phase", PHASES)
def test_a_stopped_run_keeps_the_last_whole_iteration_and_resumes_exactly(phase: str, tmp_path: Path) -> None:
    control = Control()
    recorder = acting(phase, 2, lambda: control.stop("enough for today"))
    ended = train(tiny_config(tmp_path, "run.name=a", "checkpoint.every=0"), sinks=[recorder], control=control)
    assert (ended.state, ended.exit_code, ended.reason) == ("stopped", 130, "enough for today")
    assert (ended.iteration, ended.checkpoint) == (1, "checkpoints/step-000001")
    asked = next(i for i, event in enumerate(recorder.events) if within(event, phase, 2))
    kinds = [type(event) for event in recorder.events[asked + 1 :]]
    assert kinds == [StateChanged, CheckpointSaved, RunEnded], "no step was taken after the request"
    resumed = record(tiny_config(tmp_path, "checkpoint.every=0"), resume=tmp_path / "runs/a")
    assert [started.resumed_at for started in resumed.of(RunStarted)] == [1]
    record(tiny_config(tmp_path, "run.name=whole", "checkpoint.every=0"))
    assert outcome(tmp_path / "runs/a") == outcome(tmp_path / "runs/whole")


@pytest.mark.parametrize("phase", PHASES)
def test_an_aborted_run_leaves_no_new_checkpoint(phase: str, tmp_path: Path) -> None:
    control = Control()
    settings = tiny_config(tmp_path, "run.name=a", "checkpoint.every=0")
    ended = train(settings, sinks=[acting(phase, 2, control.abort)], control=control)
    assert (ended.state, ended.exit_code, ended.checkpoint) == ("stopped", 130, "")
    assert list((tmp_path / "runs/a/checkpoints").iterdir()) == []


def test_a_run_stopped_before_its_first_iteration_keeps_its_beginning(tmp_path: Path) -> None:
    control = Control()
    control.stop()
    recorder = record(tiny_config(tmp_path, "run.name=a"), control=control)
    assert recorder.of(Iteration, PhaseProgress) == []
    assert recorder.of(RunEnded)[0].checkpoint == "checkpoints/step-000000"
    record(tiny_config(tmp_path), resume=tmp_path / "runs/a")
    record(tiny_config(tmp_path, "run.name=whole"))
    assert outcome(tmp_path / "runs/a") == outcome(tmp_path / "runs/whole")


def test_a_resumed_run_that_is_stopped_at_once_stays_where_it_was(tmp_path: Path) -> None:
    record(tiny_config(tmp_path, "run.name=a", "ppo.iterations=2"))
    before = outcome(tmp_path / "runs/a")
    control, recorder = Control(), Recorder()
    recorder.watch = lambda event: control.stop() if within(event, "update", 3) else None
    ended = train(tiny_config(tmp_path), resume=tmp_path / "runs/a", sinks=[recorder], control=control)
    assert (ended.iteration, ended.checkpoint) == (2, "checkpoints/step-000002")
    assert outcome(tmp_path / "runs/a")["checkpoint"] == before["checkpoint"]


def hurt(tmp_path: Path, accident: str, place: str) -> subprocess.CompletedProcess[str]:
    """A headless run that meets `accident` at a place of its second iteration."""
    return run_hurt(accident, place, 2, "--config", str(workspace(tmp_path)), "--name", "a")


@pytest.mark.parametrize(
    ("number", "phase", "reason"),
    [
        (signal.SIGINT, "generate", "interrupted (SIGINT)"),
        (signal.SIGTERM, "score", "terminated (SIGTERM)"),
        (signal.SIGHUP, "update", "the terminal was closed (SIGHUP)"),
    ],
    ids=["SIGINT", "SIGTERM", "SIGHUP"],
)
def test_a_signal_ends_a_run_with_a_checkpoint_from_which_it_goes_on_exactly(
    number: signal.Signals, phase: str, reason: str, tmp_path: Path
) -> None:
    ended = hurt(tmp_path, number.name, phase)
    assert ended.returncode == 130, ended.stderr
    last = json.loads(ended.stdout.splitlines()[-1])
    assert (last["state"], last["reason"], last["checkpoint"]) == ("stopped", reason, "checkpoints/step-000001")
    record(tiny_config(tmp_path), resume=tmp_path / "runs/a")
    record(tiny_config(tmp_path, "run.name=whole"))
    assert outcome(tmp_path / "runs/a") == outcome(tmp_path / "runs/whole")


def test_a_second_interrupt_ends_the_process_at_once(tmp_path: Path) -> None:
    ended = hurt(tmp_path, "twice", "update")
    assert ended.returncode == 130, ended.stderr
    assert [json.loads(line)["event"] for line in ended.stdout.splitlines()][-1] != "end"
    assert [path.name for path in (tmp_path / "runs/a/checkpoints").iterdir()] == ["step-000001"]
