"""Changing the reward of a run under way: other sources take over between iterations, and resuming keeps them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reward_model_runs import copy_workspace, train_tiny, two_reward_models
from runs_helper import (
    Killed,
    Recorder,
    comparable,
    die,
    newest_checkpoint,
    once,
    outcome,
    record,
    same_training,
    tiny_config,
)

from trainer.config import load_config
from trainer.engine.control import Control
from trainer.engine.training import train
from trainer.events import Alert, Event, Iteration, RunEnded, RunStarted, SettingChanged, StateChanged
from trainer.runs.folder import RunFolder
from trainer.runs.journal import read_journal
from trainer.runs.samples import read_samples

LENGTH = {"kind": "length", "target": 3}
RUNNING = ("reward.normalize=running", "ppo.iterations=4", "eval.every=0")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a workspace with two reward models."""
    return two_reward_models(tmp_path_factory.mktemp("made"))


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
    assert recorder.of(Alert) == []
    assert change in read_journal(run / "events.jsonl").events


def test_the_checkpoint_that_a_reward_model_had_at_the_switch_is_kept(made: Path, folder: Path) -> None:
    switched(folder, "a", [model(folder / "runs/rm")])
    (kept,) = load_config(folder / "runs/a/config.toml").reward.sources
    newest = newest_checkpoint(RunFolder(folder / "runs/rm"))
    assert kept.path == str(newest)  # type: ignore[union-attr]


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
    reported = [
        [comparable(event) for event in read_journal(folder / "runs" / name / "events.jsonl").events]
        for name in ("killed", "whole")
    ]
    changes = [[event for event in events if event["event"] == "setting"] for events in reported]
    assert changes[0] == changes[1]
    assert len(changes[0]) == 1


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
    control = Control()

    def ask() -> None:
        control.set("reward.sources", [model(folder / "runs/half")])

    again = once("update", 2, lambda: control.set("ppo.kl_coef", 0.1))
    first = once("update", 1, ask)
    recorder = Recorder(lambda event: (first(event), again(event)))  # type: ignore[func-returns-value, arg-type, return-value]
    train(tiny_config(folder, "run.name=a"), sinks=[recorder], control=control)
    (alert,) = recorder.of(Alert)
    assert (alert.iteration, alert.code) == (2, "config")
    assert "half" in alert.message
    assert "is not fully trained" in alert.message
