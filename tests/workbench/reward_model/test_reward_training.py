"""A reward model is trained on the labels in its own process, which reports its progress and outlives us."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from preference_samples import labelled
from tiny import make_checkpoint

from trainer.config import load_config, parse_overrides
from trainer.config.loading import load_config_as
from trainer.config.pairs import RewardModelConfig
from trainer.config.problems import validate_as
from trainer.engine import inbox
from trainer.events import RewardModelEvaluation, RewardModelStep, RunEnded
from trainer.preferences.store import PreferenceStore
from trainer.reward_model.loaded import load_reward_model
from trainer.runs.journal import read_journal
from workbench.config.fields import toml_line
from workbench.reward_model.training import RewardTraining, settings_for

QUICK = {
    "train.batch_size": 8,
    "train.epochs": 1,
    "optim.lr": 0.01,
    "model.lora_scale": 4.0,
    "data.eval_fraction": 0.25,
    "eval.every": 2,
}


def until(holds: Callable[[], bool], seconds: float = 300) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to hold"
        time.sleep(0.02)


def ended(training: RewardTraining) -> list[str]:
    """Return the lines that a training reports up to its end, each once."""
    reported: list[str] = []

    def look() -> bool:
        if (line := training.progress()) not in reported:
            reported.append(line)
        return training.done

    until(look)
    return [*reported, training.end()[1]]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Make a store of labels beside a model."""
    make_checkpoint(tmp_path / "model", scale=0.3)
    with PreferenceStore(tmp_path / "preferences.db") as store:
        store.add_many(labelled(48), source="")
    return tmp_path / "preferences.db"


def settings(folder: Path, **more: object) -> list[str]:
    overrides = [f"model.path={folder / 'model'}", "data.template={enable_thinking = false}"]
    found = settings_for(48, load_config("quickstart", parse_overrides(overrides))) | QUICK | more
    return [toml_line(key, value) for key, value in found.items()]


def test_a_training_reports_its_progress_and_leaves_a_model(store: Path, tmp_path: Path) -> None:
    (tmp_path / "runs" / "labels-0007").mkdir(parents=True)
    training = RewardTraining(store, tmp_path / "runs", settings(tmp_path))
    assert os.getpriority(os.PRIO_PROCESS, training.process.pid) >= 10
    assert os.getsid(training.process.pid) != os.getsid(0), "no terminal can end it"
    reported = ended(training)
    assert training.run == tmp_path / "runs/labels-0008"
    assert load_reward_model(training.run).is_finished
    events = read_journal(training.run / "events.jsonl").events
    before, *_, after = [event for event in events if isinstance(event, RewardModelEvaluation)]
    steps = sum(isinstance(event, RewardModelStep) for event in events)
    assert reported[-1] == (
        f"labels-0008: trained, held-out accuracy {100 * before.accuracy:.0f}% before, {100 * after.accuracy:.0f}% "
        f"after ({100 * after.accuracy_low:.0f} to {100 * after.accuracy_high:.0f}%, {after.pairs} pairs)"
    )
    assert reported[0] == "labels-0008: loading the labels and the model"
    assert all(f"of {steps}, loss 0." in line for line in reported if ": step " in line)
    config = load_config_as(RewardModelConfig, training.run / "config.toml")
    assert (config.data.preferences, config.train.batch_size) == (str(store), 8)
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["labels-0007", "labels-0008"]


def test_a_store_without_labels_is_reported_in_one_line_and_leaves_no_run(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "model")
    PreferenceStore(tmp_path / "preferences.db").close()
    training = RewardTraining(tmp_path / "preferences.db", tmp_path / "runs", settings(tmp_path))
    last = ended(training)[-1]
    assert last.startswith("labels-0001: failed: ")
    assert "preferences" in last
    assert "\n" not in last
    assert list(tmp_path.glob("runs/*")) == []


def test_a_training_that_is_stopped_or_killed_says_so(store: Path, tmp_path: Path) -> None:
    long = settings(tmp_path, **{"train.epochs": 100, "train.patience": 0})
    training = RewardTraining(store, tmp_path / "runs", long)
    until(lambda: "step" in training.progress())
    inbox.send(training.run, "stop", reason="enough of it")
    until(lambda: training.done)
    state, line = training.end()
    assert (state, line.partition(", ")[0]) == ("stopped", "labels-0001: enough of it")

    training = RewardTraining(store, tmp_path / "runs", long)
    until(lambda: "step" in training.progress())
    os.kill(training.process.pid, signal.SIGKILL)
    until(lambda: training.done)
    assert training.end() == ("failed", "labels-0002: ended by signal 9")


def test_a_training_survives_the_end_of_the_workbench_and_its_terminal(store: Path, tmp_path: Path) -> None:
    program = textwrap.dedent(
        """\
        import json, sys
        from pathlib import Path
        from workbench.reward_model.training import RewardTraining
        folder = Path(sys.argv[1])
        training = RewardTraining(folder / "preferences.db", folder / "runs", json.loads(sys.argv[2]))
        print(training.process.pid, flush=True)
        sys.stdin.read()
        """
    )
    workbench = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path), json.dumps(settings(tmp_path))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert workbench.stdout is not None
    assert workbench.stdin is not None
    workbench.stdout.readline()
    os.killpg(workbench.pid, signal.SIGKILL)
    workbench.communicate()
    journal = tmp_path / "runs/labels-0001/events.jsonl"
    until(lambda: journal.exists() and isinstance((read_journal(journal).events or [None])[-1], RunEnded))
    end = read_journal(journal).events[-1]
    assert isinstance(end, RunEnded)
    assert end.state == "done"


def test_a_reward_model_on_a_runs_backbone_has_its_model_and_its_prompts() -> None:
    overrides = ['model.path=a "quoted" folder', "model.quantize=8-bit", "data.system=Be kind.", "data.chat=always"]
    found = settings_for(9, load_config("quickstart", parse_overrides(overrides)))
    config = RewardModelConfig()
    for key, value in found.items():
        table, _, name = key.partition(".")
        assert hasattr(getattr(config, table), name)
        assert value is not None
    assert found["model.path"] == 'a "quoted" folder'
    assert found["model.quantize"] == "8-bit"
    assert (found["data.system"], found["data.chat"]) == ("Be kind.", "always")


def test_few_labels_get_more_epochs_and_many_get_one() -> None:
    for labels, epochs in ((1, 10), (40, 10), (140, 4), (560, 1), (100_000, 1)):
        assert settings_for(labels)["train.epochs"] == epochs
    assert "data.eval_fraction" in settings_for(100)
    assert "data.eval_fraction" not in settings_for(1000)
    assert validate_as(
        RewardModelConfig, parse_overrides([f"{k}={v}" for k, v in settings_for(9).items()], RewardModelConfig)
    )
