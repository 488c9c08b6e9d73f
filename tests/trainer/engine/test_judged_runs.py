"""Runs whose reward is a judge: they pause while it is down, and ask for nothing twice."""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from judge_server import JudgeServer, graded, write_rubric
from runs_helper import Killed, Recorder, killed_at, outcome, record, run_killed, same_training, tiny_config

from trainer.config import Config, load_config
from trainer.engine.control import Control
from trainer.engine.training import train
from trainer.events import Alert, Evaluation, Event, Iteration, RunEnded, StateChanged
from trainer.runs.folder import RunFolder
from trainer.runs.journal import read_journal


class Moody(JudgeServer):
    """Judge that never marks two responses alike, unless it has marked that response before and is `steady`."""

    def __init__(self) -> None:
        super().__init__(self.marks)
        self.steady = False
        self._given: dict[str, str] = {}
        self._count = itertools.count()

    def marks(self, response: str) -> str:
        if not (self.steady and response in self._given):
            number = next(self._count)
            self._given[response] = "What?" if number % 7 == 6 else graded(number % 11, number % 5)
        return self._given[response]


@pytest.fixture
def server() -> Iterator[Moody]:
    with Moody() as found:
        yield found


def configured(folder: Path, server: JudgeServer, name: str, **changes: Any) -> Config:
    source = server.source(write_rubric(folder), **changes)
    table = ", ".join(f"{key} = {json.dumps(value)}" for key, value in source.items())
    return tiny_config(folder, f"reward.sources=[{{{table}}}]", f"run.name={name}")


def test_a_judged_run_that_is_killed_and_resumed_equals_one_that_never_was(server: Moody, tmp_path: Path) -> None:
    config = configured(tmp_path, server, "killed")
    run, whole = tmp_path / "runs/killed", tmp_path / "runs/whole"
    with pytest.raises(Killed):
        train(config, sinks=[Recorder(killed_at("update", 2))])
    assert run_killed("evaluate", 2, "--resume", str(run)).returncode == -signal.SIGKILL
    answers = run / "judge.jsonl"
    answers.write_bytes(answers.read_bytes() + b'["00ff", "half a li')
    asked = len(server.requests)
    record(load_config(run / "config.toml"), resume=run)
    bodies = [json.dumps(body) for body in server.requests if len(body["messages"]) == 2]
    assert len(bodies) == len(set(bodies)) > asked > 0, "nothing is asked twice"
    server.steady = True
    record(configured(tmp_path, server, "whole"))
    assert same_training(run, whole)
    events = [read_journal(RunFolder(one).events).events for one in (run, whole)]
    parts = [[e.parts for e in each if isinstance(e, Iteration | Evaluation)] for each in events]
    assert repr(parts[0]) == repr(parts[1])
    assert {"judge", "judge.tokens", "judge.no_answer"} == parts[0][0].keys()
    assert sum(part["judge.no_answer"] for part in parts[0]) > 0
    (sample, *_) = outcome(run)["samples"]["step-000001.parquet"]
    assert "judge" in json.dumps(sample, default=str)


@pytest.mark.parametrize("who", ["the judge", "the user"])
def test_a_run_pauses_while_its_judge_is_down_and_then_goes_on_as_if_nothing_had_been(
    who: str, server: Moody, tmp_path: Path
) -> None:
    control = Control()

    def watch(event: Event) -> None:
        if isinstance(event, Iteration) and event.iteration == 1:
            server.faults = ["503"] * 100_000
        if event == StateChanged(state="paused"):
            server.faults = []
            if who == "the user":
                control.resume()

    recorder = Recorder(watch)
    train(configured(tmp_path, server, "down", retries=0), sinks=[recorder], control=control)
    (alert,) = (event for event in recorder.of(Alert) if event.code == "judge_down")
    assert "503 Service Unavailable" in alert.message
    states = [event.state for event in recorder.of(StateChanged)]
    assert states[states.index("paused") + 1] == "training"
    server.steady = True
    record(configured(tmp_path, server, "whole", retries=0))
    assert same_training(tmp_path / "runs/down", tmp_path / "runs/whole")


def test_a_run_that_waits_for_its_judge_can_be_stopped_and_resumed(server: Moody, tmp_path: Path) -> None:
    control = Control()

    def watch(event: Event) -> None:
        if isinstance(event, Iteration) and event.iteration == 1:
            server.faults = ["500"] * 100_000
        if event == StateChanged(state="paused"):
            control.stop()

    config = configured(tmp_path, server, "stopped", retries=0)
    ended = train(config, sinks=[Recorder(watch)], control=control)
    assert (ended.state, ended.iteration) == ("stopped", 1)
    server.faults = []
    assert record(config, resume=tmp_path / "runs/stopped").of(RunEnded)[0].state == "done"
