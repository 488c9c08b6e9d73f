"""A setting or a reward changed during a run applies from the next iteration on, in the journal and after a resume."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reward_model_runs import copy_workspace, reward_workspace, train_tiny
from runs_helper import (
    Killed,
    Recorder,
    acting,
    comparable,
    die,
    killed_at,
    newest_checkpoint,
    once,
    outcome,
    record,
    same_training,
    tiny_config,
    within,
)

from trainer.config import Config, load_config
from trainer.engine.control import Control
from trainer.engine.inbox import add_event
from trainer.engine.live_settings import changes, in_words, live_keys, with_setting
from trainer.engine.training import train
from trainer.errors import ConfigError, UsageError
from trainer.events import (
    Alert,
    CheckpointSaved,
    Event,
    HumanEvaluation,
    Iteration,
    RunEnded,
    RunStarted,
    SettingChanged,
    StateChanged,
)
from trainer.runs.folder import RunFolder
from trainer.runs.journal import read_journal
from trainer.runs.samples import read_samples

OTHERS: dict[str, Any] = {
    "rollout.temperature": 0.7,
    "rollout.top_p": 0.9,
    "rollout.top_k": 50,
    "reward.sources": [{"kind": "length", "weight": 1.0, "target": 4, "tolerance": 16}],
    "ppo.epochs": 3,
    "ppo.kl_coef": 0.25,
    "ppo.kl_target": 3.0,
    "ppo.kl_horizon": 100,
    "ppo.clip": 0.1,
    "ppo.clip_high": 0.3,
    "ppo.dual_clip": 3.0,
    "ppo.target_approx_kl": 0.5,
    "ppo.ratio_threshold": 5.0,
    "ppo.importance_cap": 2.0,
    "ppo.relative_value_clip": 0.3,
    "ppo.value_coef": 0.5,
    "ppo.entropy_coef": 0.01,
    "ppo.gamma": 0.9,
    "ppo.lam": 0.8,
    "ppo.prefix_scores": 4,
    "optim.policy_lr": 0.003,
    "optim.value_lr": 0.002,
    "optim.max_grad_norm": 0.05,
    "optim.micro_batch_tokens": 64,
    "rollout.slots": 1,
}
"""Every live setting, at a value that is not that of the tiny run."""
SCHEDULE = ("optim.schedule=linear", "optim.warmup_steps=3")


def asked_in(iteration: int, *requests: tuple[str, Any], control: Control, phase: str = "update") -> Recorder:
    """Return a recorder that asks for settings once, in the middle of a phase."""
    return acting(phase, iteration, lambda: [control.set(key, value) for key, value in requests])


def changed(folder: Path, iteration: int, *requests: tuple[str, Any], settings: tuple[str, ...] = ()) -> Recorder:
    """Run a tiny run, called `a`, that is asked for settings in `iteration`."""
    recorder = asked_in(iteration, *requests, control=(control := Control()))
    train(tiny_config(folder, "run.name=a", *settings), sinks=[recorder], control=control)
    return recorder


def in_turn(*watches: Callable[[Event], None]) -> Recorder:
    """Return a recorder that calls several watchers."""
    return Recorder(lambda event: [watch(event) for watch in watches])  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("epochs", [1, 4])
def test_another_number_of_epochs_leaves_the_learning_rates_on_their_schedule(tmp_path: Path, epochs: int) -> None:
    """Half of the iterations are half of the schedule, however many steps they took."""
    settings = ("ppo.iterations=4", "ppo.epochs=2", "optim.schedule=linear", "optim.policy_lr=1e-3", "eval.every=0")
    recorder = changed(tmp_path, 2, ("ppo.epochs", epochs), settings=settings)
    rates = [event.policy_lr for event in recorder.of(Iteration)]
    assert rates == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 0.25e-3])


def test_every_live_setting_of_the_schema_can_be_changed_and_no_other() -> None:
    assert set(live_keys()) == set(OTHERS)
    config = Config()
    for key, value in OTHERS.items():
        (change,) = changes(config, with_setting(config, key, value), 1)
        assert (change.key, change.value) == (key, value)
    for key in ("ppo.minibatches", "ppo.iterations", "optim.schedule", "run.name", "reward.normalize"):
        with pytest.raises(UsageError, match="cannot change during a run"):
            with_setting(config, key, 1)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("ppo.klcoef", 0.1, "'ppo.klcoef' cannot change during a run; what can: ppo.kl_coef, "),
        (
            "optim.schedule",
            "linear",
            "what can: optim.policy_lr, optim.value_lr, optim.max_grad_norm, optim.micro_batch_tokens$",
        ),
        ("", 0.1, "what can: rollout: temperature, .*; optim: .*max_grad_norm, micro_batch_tokens$"),
        ("ppo.kl_coef", -1, "ppo.kl_coef = -1: must be at least 0"),
        ("ppo.kl_coef", math.nan, "ppo.kl_coef = nan: must be a finite number"),
        ("ppo.kl_coef", "much", "ppo.kl_coef = 'much': must be a number"),
        ("ppo.epochs", 1.5, "ppo.epochs = 1.5: must be a whole number"),
        ("ppo.kl_coef", [0.1] * 10_000, r"\.\.\.: must be a number"),
    ],
)
def test_impossible_settings_are_refused_with_the_way_out(key: str, value: Any, message: str) -> None:
    with pytest.raises((UsageError, ConfigError), match=message) as refusal:
        with_setting(Config(), key, value)
    assert len(str(refusal.value)) < 400


def test_reward_sources_are_described_in_words() -> None:
    sources = [{"kind": "model", "path": "runs/liked", "weight": 2}, "lexicon", {"kind": "length", "target": 4}]
    (change,) = changes(Config(), with_setting(Config(), "reward.sources", sources), 1)
    assert in_words(change.old) == "lexicon"
    assert in_words(change.value) == "2.0 x model runs/liked + lexicon + length 4"
    assert in_words(0.25) == "0.25"


def test_a_setting_changed_and_changed_back_is_no_change() -> None:
    there = with_setting(Config(), "ppo.kl_coef", 1)
    assert changes(Config(), there, 3) == [SettingChanged(iteration=3, key="ppo.kl_coef", old=0.05, value=1.0)]
    assert changes(Config(), with_setting(there, "ppo.kl_coef", 0.05), 3) == []


def test_a_change_applies_from_the_next_iteration_and_is_on_disk_before_it_is_reported(tmp_path: Path) -> None:
    on_disk: list[float] = []

    def look(event: Event) -> None:
        if isinstance(event, SettingChanged):
            on_disk.append(load_config(tmp_path / "runs/a/config.toml").ppo.kl_coef)

    asking = asked_in(2, ("ppo.kl_coef", 0.3), ("ppo.kl_coef", 0.25), control=(control := Control()))
    recorder = in_turn(asking.watch, look)
    train(tiny_config(tmp_path, "run.name=a", "checkpoint.every=0"), sinks=[recorder], control=control)
    assert [iteration.kl_coef for iteration in recorder.of(Iteration)] == [0.05, 0.05, 0.25]
    assert recorder.of(SettingChanged) == [SettingChanged(iteration=3, key="ppo.kl_coef", old=0.05, value=0.25)]
    reported = [type(event) for event in recorder.of(Iteration, CheckpointSaved, SettingChanged)]
    assert reported == [Iteration, Iteration, CheckpointSaved, SettingChanged, Iteration, CheckpointSaved]
    assert on_disk == [0.25]
    assert recorder.of(SettingChanged)[0] in read_journal(tmp_path / "runs/a/events.jsonl").events


def test_a_run_that_is_changed_equals_one_that_was_stopped_and_resumed_with_the_change(tmp_path: Path) -> None:
    live = changed(tmp_path, 1, *OTHERS.items(), settings=SCHEDULE)
    assert {change.key for change in live.of(SettingChanged)} == set(OTHERS)
    recorder = Recorder(lambda event: control.stop() if within(event, "generate", 2) else None)
    train(tiny_config(tmp_path, "run.name=b", *SCHEDULE), sinks=[recorder], control=(control := Control()))
    overrides: dict[str, dict[str, Any]] = {}
    for key, value in OTHERS.items():
        table, _, name = key.partition(".")
        overrides.setdefault(table, {})[name] = value
    record(load_config(tmp_path / "runs/b/config.toml", overrides), resume=tmp_path / "runs/b")
    assert same_training(tmp_path / "runs/a", tmp_path / "runs/b"), "though only the first was warned about top_p"


def test_an_adaptive_penalty_starts_again_where_it_is_set(tmp_path: Path) -> None:
    adaptive = ("ppo.kl_controller=adaptive", "ppo.kl_target=0.001", "ppo.kl_horizon=10", "ppo.iterations=4")
    live = changed(tmp_path, 2, ("ppo.kl_coef", 0.4), settings=adaptive)
    kl_coefs = [iteration.kl_coef for iteration in live.of(Iteration)]
    assert (kl_coefs[0], kl_coefs[2]) == (0.05, 0.4)
    assert kl_coefs[1] != 0.05
    assert kl_coefs[3] != 0.4
    record(tiny_config(tmp_path, "run.name=b", *adaptive, "ppo.iterations=2"))
    record(tiny_config(tmp_path, *adaptive, "ppo.kl_coef=0.4"), resume=tmp_path / "runs/b")
    assert same_training(tmp_path / "runs/a", tmp_path / "runs/b")


@pytest.mark.parametrize("every", [0, 1])
def test_a_run_that_is_changed_and_killed_resumes_exactly(every: int, tmp_path: Path) -> None:
    settings = (*SCHEDULE, f"checkpoint.every={every}", "checkpoint.best=off", "ppo.iterations=4")
    requests = [("ppo.kl_coef", 0.25), ("ppo.epochs", 3), ("rollout.temperature", 0.7)]
    changed(tmp_path, 1, *requests, settings=settings)
    asking = asked_in(1, *requests, control=(control := Control()))
    killed = tiny_config(tmp_path, "run.name=killed", *settings)
    with pytest.raises(Killed):
        train(killed, sinks=[in_turn(asking.watch, killed_at("update", 3))], control=control)
    resumed = record(load_config(tmp_path / "runs/killed/config.toml"), resume=tmp_path / "runs/killed")
    assert [iteration.iteration for iteration in resumed.of(Iteration)] == ([2, 3, 4] if every == 0 else [3, 4])
    assert outcome(tmp_path / "runs/killed") == outcome(tmp_path / "runs/a")
    histories = [read_journal(tmp_path / "runs" / name / "events.jsonl").events for name in ("killed", "a")]
    reported = [[comparable(event) for event in events if isinstance(event, SettingChanged)] for events in histories]
    assert reported[0] == reported[1]
    assert len(reported[0]) == 3, "a resumed run does not undo a setting, so its event counts"


def test_a_run_killed_during_a_change_resumes_with_old_or_new_settings_never_a_mix(tmp_path: Path) -> None:
    def kill(event: Event) -> None:
        if isinstance(event, CheckpointSaved):  # config.toml is not written yet
            raise Killed

    asking = asked_in(1, ("ppo.kl_coef", 0.25), control=(control := Control()))
    settings = tiny_config(tmp_path, "run.name=killed", "checkpoint.every=0")
    with pytest.raises(Killed):
        train(settings, sinks=[in_turn(asking.watch, kill)], control=control)
    record(load_config(tmp_path / "runs/killed/config.toml"), resume=tmp_path / "runs/killed")
    record(tiny_config(tmp_path, "run.name=whole", "checkpoint.every=0"))
    assert outcome(tmp_path / "runs/killed") == outcome(tmp_path / "runs/whole")


def test_a_refusal_is_reported_at_once_and_changes_nothing(tmp_path: Path) -> None:
    recorder = changed(tmp_path, 2, ("ppo.minibatches", 2), ("ppo.kl_coef", -1), ("ppo.kl_coef", 0.05))
    refusals = recorder.of(Alert)
    assert [(alert.iteration, alert.level, alert.code) for alert in refusals] == [(2, "warning", "setting_refused")] * 2
    assert recorder.events.index(refusals[-1]) < recorder.events.index(recorder.of(Iteration)[1])
    assert not any("\n" in alert.message for alert in refusals)
    assert recorder.of(SettingChanged) == []
    record(tiny_config(tmp_path, "run.name=whole"))
    assert same_training(tmp_path / "runs/a", tmp_path / "runs/whole")


def test_a_change_during_the_last_checkpoint_is_reported_and_an_added_event_is_kept(tmp_path: Path) -> None:
    reported = HumanEvaluation(
        iteration=1, comparisons=4, wins=2, ties=1, losses=1, win_rate=0.625, low=0.2, high=0.9, labellers=1
    )

    def watch(event: Event) -> None:
        if isinstance(event, StateChanged) and event.state == "saving":
            control.set("ppo.kl_coef", 0.25)
            add_event(tmp_path / "runs/a", reported)

    control, recorder = Control(), Recorder(watch)
    config = tiny_config(tmp_path, "run.name=a", "ppo.iterations=1", "checkpoint.every=0")
    train(config, sinks=[recorder], control=control)
    (alert,) = recorder.of(Alert)
    assert alert.message == "ppo.kl_coef = 0.25 ignored: the run is in its last iteration"
    assert reported in read_journal(tmp_path / "runs/a/events.jsonl").events


@pytest.mark.parametrize("save", [True, False], ids=["stop", "abort"])
def test_a_stopped_run_keeps_requested_changes_and_an_aborted_one_does_not(save: bool, tmp_path: Path) -> None:
    control = Control()
    asking = asked_in(2, ("ppo.kl_coef", 0.25), control=control, phase="generate")
    end = lambda event: (control.stop if save else control.abort)() if within(event, "update", 2) else None  # noqa: E731
    recorder = in_turn(asking.watch, end)
    train(tiny_config(tmp_path, "run.name=a"), sinks=[recorder], control=control)
    assert [change.iteration for change in recorder.of(SettingChanged)] == ([2] if save else [])
    assert isinstance(recorder.events[-1], RunEnded)
    resumed = record(load_config(tmp_path / "runs/a/config.toml"), resume=tmp_path / "runs/a")
    kl_coef = 0.25 if save else 0.05
    assert [(i.iteration, i.kl_coef) for i in resumed.of(Iteration)] == [(2, kl_coef), (3, kl_coef)]


LENGTH = {"kind": "length", "target": 3}
RUNNING = ("reward.normalize=running", "ppo.iterations=4", "eval.every=0")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a workspace with a reward model."""
    return reward_workspace(tmp_path_factory.mktemp("made")).parents[1]


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """Copy the workspace for runs of the test's own; the reward models still name the model in `made`."""
    return copy_workspace(made, tmp_path)


def model(path: Path | str, **more: Any) -> dict[str, Any]:
    return {"kind": "model", "path": str(path), **more}


def switched(
    folder: Path,
    name: str,
    sources: list[Any],
    *settings: str,
    after: int = 2,
    also: Callable[[Event], None] = lambda event: None,
) -> Recorder:
    """Run the tiny run `name`, which is asked for other sources in iteration `after`."""
    control = Control()
    ask = once("update", after, lambda: control.set("reward.sources", sources))
    recorder = Recorder(lambda event: (ask(event), also(event)))  # type: ignore[func-returns-value, arg-type, return-value]
    train(tiny_config(folder, f"run.name={name}", *settings), sinks=[recorder], control=control)
    return recorder


def parts(run: Path, iteration: int) -> set[str]:
    """Return the names of what was scored in an iteration."""
    rows = read_samples(RunFolder(run).samples_file(iteration)).to_pylist()
    return {part["source"] for row in rows for part in row["parts"]}


def statistics(run: Path) -> dict[str, Any]:
    """Return the reward's statistics in the newest checkpoint."""
    newest = newest_checkpoint(RunFolder(run))
    assert newest is not None
    found: dict[str, Any] = json.loads((newest / "state.json").read_text())["rewards"]
    return found


def test_new_sources_score_from_the_next_iteration_on(folder: Path) -> None:
    recorder = switched(folder, "a", [model(folder / "runs/rm"), LENGTH], "ppo.iterations=4")
    run = folder / "runs/a"
    assert [parts(run, number) for number in (1, 2)] == [{"rewards.py:score"}] * 2
    assert [parts(run, number) for number in (3, 4)] == [{"model:rm", "length"}] * 2
    assert [set(iteration.parts) for iteration in recorder.of(Iteration)[2:]] == [{"model:rm", "length"}] * 2
    (change,) = recorder.of(SettingChanged)
    assert (change.iteration, change.key) == (3, "reward.sources")
    assert [source["path"] for source in change.old] == [f"{folder}/rewards.py:score"]
    assert change.value == load_config(run / "config.toml").model_dump()["reward"]["sources"]
    assert change.value[0]["path"] == str(newest_checkpoint(RunFolder(folder / "runs/rm"))), "the one of now is kept"
    assert recorder.of(Alert) == []
    assert change in read_journal(run / "events.jsonl").events


@pytest.mark.parametrize("every", [0, 1])
@pytest.mark.parametrize("settings", [(), ("reward.normalize=running",)], ids=["plain", "statistics"])
def test_a_switched_run_killed_and_resumed_equals_one_that_was_never_killed(
    every: int, settings: tuple[str, ...], folder: Path
) -> None:
    how = (f"checkpoint.every={every}", "ppo.iterations=4", *settings)
    sources = [model(folder / "runs/rm"), {**LENGTH, "weight": 0.5}]
    switched(folder, "whole", sources, *how)
    with pytest.raises(Killed):
        switched(folder, "killed", sources, *how, also=once("generate", 4, die))
    resumed = record(load_config(folder / "runs/killed/config.toml"), resume=folder / "runs/killed")
    assert [start.resumed_at for start in resumed.of(RunStarted)] == [2 if every == 0 else 3]
    assert outcome(folder / "runs/killed") == outcome(folder / "runs/whole")
    killed, whole = (read_journal(folder / "runs" / name / "events.jsonl").events for name in ("killed", "whole"))
    changes_ = [[event for event in events if isinstance(event, SettingChanged)] for events in (killed, whole)]
    assert changes_[0] == changes_[1]
    assert len(changes_[0]) == 1


def test_running_statistics_start_again_at_the_switch_and_that_is_reported(folder: Path) -> None:
    recorder = switched(folder, "a", [LENGTH], *RUNNING, after=3)
    (alert,) = recorder.of(Alert)
    assert (alert.iteration, alert.level, alert.code) == (4, "info", "reward_statistics")
    assert statistics(folder / "runs/a")["count"] == 4, "the scores of one iteration"
    record(tiny_config(folder, "run.name=b", *RUNNING))
    assert statistics(folder / "runs/b")["count"] == 16


def test_a_run_resumed_with_other_sources_equals_one_that_switched_there(folder: Path) -> None:
    switched(folder, "a", [LENGTH], *RUNNING)
    control = Control()
    stop = Recorder(once("generate", 3, control.stop))
    train(tiny_config(folder, "run.name=b", *RUNNING), sinks=[stop], control=control)
    assert statistics(folder / "runs/b")["count"] == 8
    config = load_config(folder / "runs/b/config.toml", {"reward": {"sources": [LENGTH]}})
    resumed = record(config, resume=folder / "runs/b")
    assert any("running statistics of reward.normalize start again" in w for w in resumed.of(RunStarted)[0].warnings)
    assert same_training(folder / "runs/a", folder / "runs/b")


REFUSED = [
    ([model("{folder}/runs/nothing")], "/runs/nothing': no such folder"),
    ([model("{folder}/runs")], "holds no reward model"),
    (["{folder}/rewards.py:scor"], "has no function 'scor': did you mean 'score'?"),
    (["{folder}/broken.py:score"], "fails to load: ZeroDivisionError: division by zero"),
    ([LENGTH, "misspelt"], "reward.sources[1] = 'misspelt'"),
    (3, "reward.sources = 3"),
]


@pytest.mark.parametrize(("sources", "message"), REFUSED)
def test_unavailable_sources_are_refused_and_the_old_ones_stay(sources: Any, message: str, folder: Path) -> None:
    (folder / "broken.py").write_text("1 / 0")
    asked = json.loads(json.dumps(sources).replace("{folder}", str(folder)))
    recorder = switched(folder, "a", asked, *RUNNING)
    (alert,) = recorder.of(Alert)
    assert (alert.level, alert.code) == ("warning", "setting_refused")
    assert message in alert.message
    assert "\n" not in alert.message
    assert recorder.of(SettingChanged) == []
    record(tiny_config(folder, "run.name=whole", *RUNNING))
    assert same_training(folder / "runs/a", folder / "runs/whole")


def test_whatever_a_foreign_model_raises_the_run_continues(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("[load] no\nroom")

    monkeypatch.setattr("trainer.rewards.model_reward.load_reward_model", refuse)
    recorder = switched(folder, "a", [model(folder / "runs/rm")])
    (alert,) = recorder.of(Alert)
    assert alert.message == "[load] no; room; the reward is unchanged"
    assert [ended.state for ended in recorder.of(RunEnded)] == ["done"]


def test_naming_the_same_reward_model_by_its_run_is_no_change(folder: Path) -> None:
    sources = [model(folder / "runs/rm")]
    control = Control()
    ask = Recorder(once("update", 1, lambda: control.set("reward.sources", sources)))
    config = tiny_config(folder, "run.name=a")
    config = config.model_validate({**config.model_dump(), "reward": {"sources": sources}})
    train(config, sinks=[ask], control=control)
    assert ask.of(SettingChanged, Alert) == []


def test_a_relative_path_is_relative_to_the_folder_that_the_run_began_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "elsewhere").mkdir()
    recorder = switched(
        folder, "a", ["rewards.py:constant"], also=once("update", 1, lambda: monkeypatch.chdir(folder / "elsewhere"))
    )
    (change,) = recorder.of(SettingChanged)
    assert change.value[0]["path"] == f"{folder}/rewards.py:constant"


def test_a_stopped_run_resumes_with_the_requested_sources(folder: Path) -> None:
    control = Control()

    def ask() -> None:
        control.set("reward.sources", [model(folder / "runs/rm")])
        control.stop()

    recorder = Recorder(once("update", 2, ask))
    train(tiny_config(folder, "run.name=a"), sinks=[recorder], control=control)
    assert StateChanged(state="loading") not in recorder.events[1:], "nothing is loaded for a run that ends"
    (kept,) = load_config(folder / "runs/a/config.toml").reward.sources
    assert Path(kept.path).parent == folder / "runs/rm/checkpoints"  # type: ignore[union-attr]
    resumed = record(load_config(folder / "runs/a/config.toml"), resume=folder / "runs/a")
    assert [iteration.iteration for iteration in resumed.of(Iteration)] == [2, 3]
    assert parts(folder / "runs/a", 2) == {"model:rm"}


def test_a_partly_trained_model_causes_one_warning(folder: Path) -> None:
    control = Control()
    ends = Recorder(lambda event: control.stop() if event == StateChanged(state="training") else None)
    train_tiny(folder, "half", sinks=[ends], control=control)
    recorder = switched(folder, "a", [model(folder / "runs/half")], after=1)
    (alert,) = recorder.of(Alert)
    assert (alert.iteration, alert.code) == (2, "config")
    assert "half" in alert.message
    assert "is not fully trained" in alert.message
