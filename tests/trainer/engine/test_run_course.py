"""Checks of a run while it trains: decisions are carried out, and alarms can pause it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from runs_helper import Killed, Recorder, die, outcome, record, same_training, tiny_config
from scripted_run import alarm

from trainer.config import Config, load_config
from trainer.engine import artifacts
from trainer.engine.control import Control
from trainer.engine.training import train
from trainer.events import (
    Alarm,
    Alert,
    CheckpointSaved,
    Decision,
    Evaluation,
    Event,
    HumanEvaluation,
    Iteration,
    RunEnded,
    RunStarted,
    StateChanged,
)
from trainer.monitoring import Monitor
from trainer.runs.checkpoint_files import read_best
from trainer.runs.folder import RunFolder
from trainer.runs.journal import read_journal

AT_TARGET = (
    *("convergence.window=2", "convergence.on_target=stop", "convergence.target_score=-1"),
    *("ppo.iterations=5", "eval.every=0"),
)


def killing(condition: Callable[[Event], bool]) -> Recorder:
    def watch(event: Event) -> None:
        if condition(event):
            raise Killed

    return Recorder(watch)


def test_a_run_that_has_reached_its_target_is_done(tmp_path: Path) -> None:
    recorder = record(tiny_config(tmp_path, "run.name=a", *AT_TARGET))
    (decision,) = recorder.of(Decision)
    (ended,) = recorder.of(RunEnded)
    assert [i.iteration for i in recorder.of(Iteration)] == [1, 2]
    assert (decision.iteration, decision.action) == (2, "stop")
    assert (ended.state, ended.exit_code, ended.iteration) == ("done", 0, 2)
    assert ended.reason == decision.message
    assert ended.checkpoint == "checkpoints/step-000002"
    at = recorder.events.index(decision)
    assert isinstance(recorder.events[at - 1], Iteration), "told right after what it is about"


def test_a_target_that_the_untrained_policy_reaches_leaves_nothing_to_train(tmp_path: Path) -> None:
    settings = ("convergence.on_target=stop", "convergence.target_score=-1", "checkpoint.every=0")
    recorder = record(tiny_config(tmp_path, "run.name=a", *settings))
    (decision,) = recorder.of(Decision)
    assert decision.iteration == 0, "the untrained policy is that good"
    assert recorder.of(Iteration) == []
    assert recorder.of(RunEnded)[0].reason == decision.message


def test_a_run_that_stopped_itself_stops_again_until_told_to_continue(tmp_path: Path) -> None:
    record(tiny_config(tmp_path, "run.name=a", *AT_TARGET))
    before = outcome(tmp_path / "runs/a")
    again = record(load_config(tmp_path / "runs/a/config.toml"), resume=tmp_path / "runs/a")
    assert again.of(Iteration, Decision) == []
    assert again.of(RunEnded)[0].reason == before["events"][-1]["message"]
    assert outcome(tmp_path / "runs/a") == before
    on = record(tiny_config(tmp_path, *AT_TARGET, "convergence.on_target=off"), resume=tmp_path / "runs/a")
    assert [i.iteration for i in on.of(Iteration)] == [3, 4, 5]
    record(tiny_config(tmp_path, "run.name=whole", *AT_TARGET, "convergence.on_target=off"))
    assert same_training(tmp_path / "runs/a", tmp_path / "runs/whole")


@pytest.mark.parametrize(
    "condition",
    [
        lambda event: isinstance(event, Decision),
        lambda event: isinstance(event, CheckpointSaved) and event.iteration == 2,
    ],
    ids=["decided", "saved"],
)
def test_a_run_killed_just_before_it_stops_stops_when_resumed(
    condition: Callable[[Event], bool], tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        train(tiny_config(tmp_path, "run.name=killed", *AT_TARGET), sinks=[killing(condition)])
    resumed = record(load_config(tmp_path / "runs/killed/config.toml"), resume=tmp_path / "runs/killed")
    assert resumed.of(RunEnded)[0].iteration == 2
    record(tiny_config(tmp_path, "run.name=whole", *AT_TARGET))
    assert outcome(tmp_path / "runs/killed") == outcome(tmp_path / "runs/whole")


def test_a_run_continues_where_its_decisions_say_so(tmp_path: Path) -> None:
    how = ("convergence.window=2", "convergence.on_target=continue", "convergence.target_score=-1", "eval.every=0")
    recorder = record(tiny_config(tmp_path, "run.name=a", *how))
    assert [(d.iteration, d.action) for d in recorder.of(Decision)] == [(2, "continue")], "once"
    assert len(recorder.of(Iteration)) == 3
    resumed = record(tiny_config(tmp_path, *how, "ppo.iterations=5"), resume=tmp_path / "runs/a")
    assert resumed.of(Decision) == [], "a resumed run knows that it was told"
    assert len(resumed.of(Iteration)) == 2


def test_the_best_checkpoint_of_a_killed_run_is_that_of_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("ppo.iterations=3", "eval.every=1", "checkpoint.keep=1")

    monkeypatch.setattr(artifacts, "write_best", die)  # its checkpoint is there by then
    with pytest.raises(Killed):
        train(tiny_config(tmp_path, "run.name=killed", *settings))
    monkeypatch.undo()
    record(load_config(tmp_path / "runs/killed/config.toml"), resume=tmp_path / "runs/killed")
    record(tiny_config(tmp_path, "run.name=whole", *settings))
    killed, whole = (RunFolder(tmp_path / "runs" / name) for name in ("killed", "whole"))
    assert read_best(killed) == read_best(whole)
    assert outcome(killed.root) == outcome(whole.root)
    scores = {
        event.iteration: event.score_mean
        for event in read_journal(whole.events).events
        if isinstance(event, Evaluation)
    }
    best = read_best(whole)
    assert best is not None
    assert best.value == max(score for number, score in scores.items() if number > 0)


class Alarming(Monitor):
    """Stand-in for the monitor: raises an alarm after iteration 1, judging by the events that it was fed."""

    fed: list[Event]
    level = "error"

    def __init__(self, config_of: Callable[[], Config], past: Sequence[Event] = ()) -> None:
        Alarming.fed = []
        super().__init__(config_of, past)

    def take(self, event: Event) -> list[Alert]:
        self.fed.append(event)
        return [alarm(1, level=self.level)] if isinstance(event, Iteration) and event.iteration == 1 else []


@pytest.fixture
def alarming(monkeypatch: pytest.MonkeyPatch) -> type[Alarming]:
    monkeypatch.setattr("trainer.engine.training.Monitor", Alarming)
    monkeypatch.setattr(Alarming, "level", "error")
    return Alarming


def test_an_alarm_is_emitted_right_after_its_cause(alarming: type[Alarming], tmp_path: Path) -> None:
    recorder = record(tiny_config(tmp_path, "run.name=a"))
    at = recorder.events.index(recorder.of(Alarm)[0])
    assert isinstance(recorder.events[at - 1], Iteration)
    assert recorder.of(Alarm)[0] in read_journal(tmp_path / "runs/a/events.jsonl").events
    assert "paused" not in [event.state for event in recorder.of(StateChanged)]


def test_a_resumed_run_feeds_its_past_to_the_monitor_and_raises_no_alarm_twice(
    alarming: type[Alarming], tmp_path: Path
) -> None:
    record(tiny_config(tmp_path, "run.name=a", "ppo.iterations=2"))
    human = HumanEvaluation(
        iteration=2, comparisons=4, wins=3, ties=0, losses=1, win_rate=0.75, low=0.3, high=0.95, labellers=1
    )
    recorder = Recorder(lambda event: control.report(human) if isinstance(event, RunStarted) else None)
    train(tiny_config(tmp_path), resume=tmp_path / "runs/a", sinks=[recorder], control=(control := Control()))
    kinds = (Iteration, Evaluation, HumanEvaluation, RunStarted)
    fed = [(type(e).__name__, getattr(e, "iteration", None)) for e in alarming.fed if isinstance(e, kinds)]
    assert fed == [
        *[("RunStarted", None), ("Evaluation", 0), ("Iteration", 1), ("Iteration", 2), ("Evaluation", 2)],
        *[("RunStarted", None), ("HumanEvaluation", 2), ("Iteration", 3), ("Evaluation", 3)],
    ]
    assert recorder.of(Alarm) == []


@pytest.mark.parametrize(("level", "pauses"), [("error", True), ("warning", False)])
def test_an_error_alarm_pauses_the_run_until_someone_resumes_it(
    level: str, pauses: bool, alarming: type[Alarming], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alarming, "level", level)
    go_on = lambda event: control.resume() if event == StateChanged(state="paused") else None  # noqa: E731
    control, recorder = Control(), Recorder(go_on)
    ended = train(tiny_config(tmp_path, "health.pause=true"), sinks=[recorder], control=control)
    assert ended.state == "done"
    assert ("paused" in [event.state for event in recorder.of(StateChanged)]) == pauses
    reported = [(event.code, event.message) for event in recorder.of(Alert) if not isinstance(event, Alarm)]
    assert reported == (
        [("paused", "paused by alarm 'kl_high' (health.pause = true): deal with it, then resume")] if pauses else []
    )
    if pauses:
        states = [
            event for event in recorder.events if event == StateChanged(state="paused") or isinstance(event, Iteration)
        ]
        assert [type(event) for event in states] == [Iteration, StateChanged, Iteration, Iteration]
