"""A run killed anywhere and resumed equals the run that was never killed, and decisions and alarms are carried out."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from runs_helper import (
    Killed,
    Recorder,
    acting,
    die,
    outcome,
    record,
    run_killed,
    same_training,
    tiny_config,
    workspace,
)
from scripted_run import alarm

from trainer.config import Config, load_config
from trainer.engine import artifacts, ppo
from trainer.engine.control import Control
from trainer.engine.training import train
from trainer.errors import StorageError, UsageError
from trainer.events import (
    Alarm,
    Alert,
    CheckpointSaved,
    DataChanged,
    Decision,
    Evaluation,
    Event,
    HumanEvaluation,
    Iteration,
    RunEnded,
    RunStarted,
    SettingChanged,
    StateChanged,
)
from trainer.monitoring import Monitor
from trainer.runs.checkpoint_files import checkpoints, read_best
from trainer.runs.folder import RunFolder
from trainer.runs.journal import read_journal
from trainer.runs.listing import list_runs

ACCIDENTS = [
    ("generate", 1),
    ("score", 2),
    ("reward", 2),
    ("update", 3),
    ("samples", 3),
    ("half-written", 4),
    ("before-rename", 4),
    ("evaluate", 4),
    ("after-rename", 5),
]


def test_a_run_killed_in_every_phase_and_resumed_equals_one_that_was_never_killed(tmp_path: Path) -> None:
    settings = ["--set", "ppo.iterations=5", "--set", "checkpoint.keep=2"]
    start = ["--config", str(workspace(tmp_path)), "--name", "killed", *settings]
    run = tmp_path / "runs" / "killed"
    for number, (place, iteration) in enumerate(ACCIDENTS):
        ended = run_killed(place, iteration, *(["--resume", str(run)] if number else start))
        assert ended.returncode == -signal.SIGKILL, (place, ended.stderr)
        assert [summary.state for summary in list_runs(tmp_path / "runs")] == ["interrupted"]
    record(load_config(run / "config.toml"), resume=run)
    record(tiny_config(tmp_path, "run.name=whole", "ppo.iterations=5", "checkpoint.keep=2"))
    assert outcome(run) == outcome(tmp_path / "runs" / "whole")
    assert not list(run.rglob(".*")), "what killed processes left behind is cleared away"


def test_settings_that_a_resumed_run_changes_are_in_its_journal_and_only_those(tmp_path: Path) -> None:
    record(tiny_config(tmp_path, "run.name=a", "ppo.iterations=1", "ppo.kl_coef=0.1"))
    folder = RunFolder(tmp_path / "runs/a")
    same = record(load_config(folder.config, {"ppo": {"iterations": 2}}), resume=folder.root)
    assert same.of(SettingChanged) == []
    length = {"reward": {"sources": [{"kind": "length", "target": 3}]}, "ppo": {"iterations": 3, "kl_coef": 0.3}}
    changed = record(load_config(folder.config, length), resume=folder.root)
    found = [(event.iteration, event.key) for event in changed.of(SettingChanged)]
    assert found == [(3, "reward.sources"), (3, "ppo.kl_coef")]
    written = [event for event in read_journal(folder.events).events if isinstance(event, RunStarted | SettingChanged)]
    assert [type(event) for event in written] == [RunStarted] * 3 + [SettingChanged] * 2


VARIANTS = {
    "value head": ["model.value_model=head"],
    "value adapter": ["model.value_model=adapter"],
    "fitted critic": ["ppo.minibatches=2", "ppo.gamma=0.9", "ppo.lam=0.5"],
    "samples of a prompt": ["rollout.samples_per_prompt=2"],
    "minibatches": ["ppo.minibatches=2", "optim.micro_batch_tokens=40"],
    "whitened rewards": ["ppo.whiten_rewards=true"],
    "bootstrapping": ["ppo.bootstrap_truncated=true", "ppo.gamma=0.9", 'rollout.stop=["a", "b", "c"]'],
    "token rewards": ['reward.sources=["{folder}/rewards.py:each_token"]'],
    "running statistics": ["reward.normalize=running", "reward.clip=1.5"],
    "schedule and decay": ["optim.schedule=cosine", "optim.warmup_steps=3", "optim.weight_decay=0.1"],
    "adaptive penalty": ["ppo.kl_controller=adaptive", "ppo.kl_target=0.001", "ppo.kl_horizon=10"],
    "moving average": ["optim.ema_decay=0.5", "ppo.minibatches=2"],
    "critic first": ["ppo.critic_warmup=1", "model.value_model=head"],
    "fitted critic first": ["ppo.critic_warmup=1"],
    "no critic": ["ppo.estimator=rloo", "rollout.samples_per_prompt=2", "ppo.kl_in=loss", "ppo.kl_estimator=k3"],
    "scores so far": ["ppo.prefix_scores=2", "ppo.kl_in=loss", "ppo.kl_estimator=full"],
    "scores so far, and a head": ["ppo.prefix_scores=2", "model.value_model=head"],
    "greedy baseline": ["ppo.estimator=remax"],
    "sampling": ["rollout.temperature=0.8", "rollout.top_k=50", 'rollout.stop=["a"]', "rollout.slots=2"],
}


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS.keys())
def test_a_killed_run_resumes_exactly_whatever_the_algorithm(settings: list[str], tmp_path: Path) -> None:
    settings = [text.replace("{folder}", str(tmp_path)) for text in settings]
    recorder = record(tiny_config(tmp_path, "run.name=whole", *settings))
    takes_steps = [iteration.steps > 0 for iteration in recorder.of(Iteration)]
    assert takes_steps == [settings != VARIANTS["fitted critic first"], True, True]

    with pytest.raises(Killed):
        train(tiny_config(tmp_path, "run.name=killed", *settings), sinks=[acting("update", 2, die)])
    resumed = record(load_config(tmp_path / "runs/killed/config.toml"), resume=tmp_path / "runs/killed")
    assert [started.resumed_at for started in resumed.of(RunStarted)] == [1]
    assert outcome(tmp_path / "runs/killed") == outcome(tmp_path / "runs/whole")


def test_prompts_that_have_changed_are_named_and_begin_a_new_series_of_evaluations_once_accepted(
    tmp_path: Path,
) -> None:
    config = tiny_config(tmp_path, "run.name=a", "ppo.iterations=2", "eval.every=1", "data.eval_fraction=0.3")
    record(config)
    folder = RunFolder(tmp_path / "runs/a")
    assert folder.best.exists()
    file = Path(config.data.prompts)
    lines = file.read_text().splitlines()
    record_before = folder.prompts.read_text()
    held_out = record_before.count("held-out ")
    assert record_before.count("train ") + held_out == len(lines)
    assert held_out > 1
    more = {"ppo": {"iterations": 3}}

    def refusal(*now: str, **settings: Any) -> str:
        file.write_text("\n".join(now))
        journal = folder.events.read_bytes()
        with pytest.raises(UsageError, match=r"the prompts of run 'a' have changed .*--accept-data") as error:
            record(load_config(folder.config, {**more, **settings}), resume=folder.root)
        assert (folder.events.read_bytes(), folder.prompts.read_text()) == (journal, record_before)
        return str(error.value)

    new = [json.dumps({"prompt": f"another prompt {number}"}) for number in range(5)]
    assert f"(5 added; the first new one is prompt {len(lines)}, counted from 0" in refusal(*lines, *new)
    assert "(2 removed" in refusal(*lines[:-2])
    assert "in another order" in refusal(*lines[::-1])
    assert "(1 replaced" in refusal(*lines[:-1], new[0])
    assert "replaced" in refusal(*(line.replace("}", ', "answer": 3}') for line in lines)), "rewards get the columns"
    assert "would be trained on" in refusal(*lines, data={"eval_fraction": 0.1})
    assert "replaced" in refusal(*lines, data={"max_prompt_tokens": 3, "too_long": "truncate"}), "the model reads less"

    folder.prompts.write_text(record_before[:-9])
    with pytest.raises(StorageError, match=r"prompts.sha256' is damaged: restore a copy, or delete it"):
        record(load_config(folder.config, more), resume=folder.root)
    folder.prompts.unlink()
    folder.prompts.mkdir()
    with pytest.raises(StorageError, match=r"^cannot write '.*prompts.sha256': "):
        record(load_config(folder.config, more), resume=folder.root)
    folder.prompts.rmdir()
    folder.prompts.write_text(record_before)
    file.write_text("\n".join([*lines, *new]))
    accepted = record(load_config(folder.config, more), resume=folder.root, accept_data=True)
    [change] = accepted.of(DataChanged)
    assert (change.iteration, change.level) == (2, "warning")
    assert folder.prompts.read_text() != record_before
    best = read_best(folder)
    assert best
    assert best.iteration == 3, "the best of before was measured on other prompts"
    again = record(load_config(folder.config, {"ppo": {"iterations": 4}}), resume=folder.root)
    assert not again.of(DataChanged)


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(tiny_config(tmp_path, "run.name=killed"), sinks=[acting("update", 1, die)])
    record(tiny_config(tmp_path), resume=tmp_path / "runs/killed")
    record(tiny_config(tmp_path, "run.name=whole"))
    assert outcome(tmp_path / "runs/killed") == outcome(tmp_path / "runs/whole")


def test_a_finished_run_can_be_extended_as_if_it_had_been_longer(tmp_path: Path) -> None:
    record(tiny_config(tmp_path, "run.name=short", "ppo.iterations=2"))
    longer = tiny_config(tmp_path)
    record(longer, resume=tmp_path / "runs/short")
    record(tiny_config(tmp_path, "run.name=long"))
    assert outcome(tmp_path / "runs/short") == outcome(tmp_path / "runs/long")
    assert load_config(tmp_path / "runs/short/config.toml").ppo == longer.ppo
    assert [(run.name, run.iteration, run.iterations) for run in list_runs(tmp_path / "runs")] == [
        (name, longer.ppo.iterations, longer.ppo.iterations) for name in ("long", "short")
    ]


def test_a_run_that_is_done_and_resumed_does_nothing_and_stays_as_it_is(tmp_path: Path) -> None:
    record(tiny_config(tmp_path, "run.name=a"))
    before = outcome(tmp_path / "runs/a")
    recorder = record(tiny_config(tmp_path), resume=tmp_path / "runs/a")
    assert recorder.of(Iteration, Evaluation, CheckpointSaved) == []
    assert recorder.of(RunEnded)[0].exit_code == 0
    assert outcome(tmp_path / "runs/a") == before


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    recorder = record(tiny_config(tmp_path, "run.name=a", "ppo.iterations=4", "checkpoint.keep=2", "eval.every=0"))
    assert [saved.iteration for saved in recorder.of(CheckpointSaved)] == [1, 2, 3, 4]
    found = checkpoints(RunFolder(tmp_path / "runs/a"))
    assert [path.name for path in found.paths] == ["step-000003", "step-000004"]
    assert set((tmp_path / "runs/a/checkpoints").iterdir()) == set(found.paths)


def test_checkpoints_come_as_often_as_asked_and_at_the_end(tmp_path: Path) -> None:
    recorder = record(tiny_config(tmp_path, "ppo.iterations=5", "checkpoint.every=2"))
    assert [saved.iteration for saved in recorder.of(CheckpointSaved)] == [2, 4, 5]
    assert recorder.of(RunEnded)[0].checkpoint == "checkpoints/step-000005"


def test_a_resume_that_fails_leaves_the_settings_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tiny_config(tmp_path, "run.name=a", "ppo.iterations=1"))
    folder = RunFolder(tmp_path / "runs/a")
    before = folder.config.read_bytes()
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(UsageError, match="'trackio' is not installed"):
        record(load_config(folder.config, {"run": {"trackers": ["trackio"]}}), resume=folder.root)
    assert folder.config.read_bytes() == before


def test_no_other_process_changes_a_run_that_loads_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tiny_config(tmp_path, "run.name=a", "ppo.iterations=1"))
    folder = RunFolder(tmp_path / "runs/a")
    config, load = load_config(folder.config, {"ppo": {"iterations": 2}}), ppo.load_backbone

    def load_meanwhile(*arguments: Any) -> Any:
        with pytest.raises(UsageError, match="run 'a' is being trained by process"), folder.lock():
            pass
        return load(*arguments)

    monkeypatch.setattr(ppo, "load_backbone", load_meanwhile)
    assert record(config, resume=folder.root).of(RunEnded)[-1].iteration == 2


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
    at = recorder.events.index(recorder.of(Alarm)[0])
    assert isinstance(recorder.events[at - 1], Iteration), "reported right after its cause"
