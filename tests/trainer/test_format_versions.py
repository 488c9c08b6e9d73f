"""Files carry the version of their format: older ones are upgraded, newer ones are refused."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from config_files import config_problems
from dpo_helper import dpo_config
from preference_samples import labelled, reward_config
from runs_helper import Recorder, comparable, record, tiny_config

from trainer.config import load_config
from trainer.config.fields import CONFIG_FORMAT
from trainer.config.ppo import PPOConfig
from trainer.dpo.dpo_run import train_dpo
from trainer.errors import ConfigError, StorageError, UsageError
from trainer.events import DPOStep, Iteration, RunStarted
from trainer.format_versions import FileFormat
from trainer.ppo.checkpoint import load_checkpoint
from trainer.ppo_run.answers import SavedPolicy
from trainer.ppo_run.checkpoint_evaluation import EvaluationOptions, evaluate_checkpoint
from trainer.reward_model.loaded import load_reward_model
from trainer.reward_model.reward_model_run import train_reward_model
from trainer.reward_model.snapshot import load_snapshot, read_card
from trainer.rewards import trust_all
from trainer.runs.checkpoint_files import write_state
from trainer.runs.checkpoint_index import checkpoints
from trainer.runs.folder import RunFolder, read_config
from trainer.runs.listing import list_runs
from workbench.run.supervisor import kl_target


def renamed(old: str, new: str) -> Any:
    return lambda content: {new if key == old else key: value for key, value in content.items()}


FORMAT = FileFormat("format", (renamed("a", "b"), renamed("b", "c")))


@pytest.mark.parametrize("content", [{"a": 1}, {"format": 1, "a": 1}, {"format": 2, "b": 1}, {"format": 3, "c": 1}])
def test_a_file_of_any_version_is_upgraded_and_one_without_a_number_counts_as_the_first(
    content: dict[str, Any],
) -> None:
    assert FORMAT.version == 3
    assert FORMAT.current(content, "it") == {"format": 3, "c": 1}


def test_a_newer_version_is_refused_by_name_with_the_way_out() -> None:
    with pytest.raises(StorageError) as raised:
        FORMAT.current({"format": 4}, "card 'x'")
    assert str(raised.value) == (
        "card 'x' was written by a newer version (format 4, this one knows up to 3): update ppo-workbench"
    )


@pytest.mark.parametrize("content", [[], None, "a", {"format": "1"}, {"format": 0}, {"format": True}, {"format": 1.5}])
def test_a_file_without_a_version_is_damaged(content: Any) -> None:
    with pytest.raises(ValueError, match=r"table|whole number"):
        FORMAT.current(content, "it")


def test_an_old_runs_configuration_is_read_under_its_new_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def moved(content: dict[str, Any]) -> dict[str, Any]:
        ppo = renamed("beta", "kl_coef")(content.get("ppo", {}))
        return {**content, "ppo": ppo}

    old = tmp_path / "config.toml"
    old.write_text("schema = 1\n[ppo]\nbeta = 0.3\n")
    with pytest.raises(ConfigError, match="unknown key"):
        load_config(old)
    monkeypatch.setattr("trainer.config.loading.CONFIG_FORMAT", FileFormat("schema", (moved,)))
    assert load_config(old).ppo.kl_coef == 0.3


def test_the_list_of_runs_and_the_displays_read_an_old_runs_configuration_under_its_new_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def moved(content: dict[str, Any]) -> dict[str, Any]:
        ppo = renamed("count", "iterations")(renamed("wanted_kl", "kl_target")(content["ppo"]))
        return {**content, "ppo": ppo}

    monkeypatch.setattr("trainer.runs.folder.CONFIG_FORMAT", FileFormat("schema", (moved,)))
    run = RunFolder(tmp_path / "runs/old")
    run.root.mkdir(parents=True)
    run.config.write_text("[model]\npath = 'x'\n[ppo]\ncount = 7\nwanted_kl = 3\nkl_controller = 'adaptive'\n")
    assert [listed.iterations for listed in list_runs(tmp_path / "runs")] == [7]
    assert kl_target(run.root) == 3
    assert read_config(run)["ppo"] == {"iterations": 7, "kl_target": 3, "kl_controller": "adaptive"}


@pytest.mark.parametrize("schema", ["", "schema = 1"])
@pytest.mark.parametrize(("old", "new"), [("0.2", 1.0), ("0", 0.0), ("0.5", 2.5)])
def test_a_value_clip_in_units_of_the_reward_becomes_a_relative_one(
    schema: str, old: str, new: float, tmp_path: Path
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f"{schema}\n[ppo]\nvalue_clip = {old}\nkl_coef = 0.3\n")
    assert load_config(path).ppo == PPOConfig(kl_coef=0.3, relative_value_clip=new)
    path.write_text(f"{schema}\n[ppo]\nvalue_clip = 'a'\n")
    with pytest.raises(ConfigError, match=r"ppo.relative_value_clip = 'a': must be a number"):
        load_config(path)


@pytest.mark.parametrize(
    ("number", "error", "words"),
    [
        ("3", UsageError, r"configuration '.*config.toml' was written by a newer version \(schema 3, .*update"),
        ("'1'", ConfigError, "schema = '1': must be a whole number from 1 to 2"),
        ("0", ConfigError, "schema = 0: must be"),
    ],
)
def test_a_configuration_of_another_version_is_refused(
    tmp_path: Path, number: str, error: type[Exception], words: str
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f"schema = {number}\n[ppo]\nkl_coef = 0.3\n")
    with pytest.raises(error, match=words):
        load_config(path)
    assert [line.split(":")[0] for line in config_problems(tomllib.loads(path.read_text()))] == [f"schema = {number}"]


def change(checkpoint: Path, name: str, **values: Any) -> None:
    """Change values in a file of a checkpoint, as if it had been written with them."""
    content = json.loads((checkpoint / name).read_text())
    (checkpoint / name).write_text(json.dumps(content | values))
    write_state(checkpoint, json.loads((checkpoint / "state.json").read_text()))


def test_files_of_a_run_carry_their_versions_and_newer_ones_are_refused(tmp_path: Path) -> None:
    record(tiny_config(tmp_path, "run.name=a", "ppo.iterations=1"))
    run = RunFolder(tmp_path / "runs/a")
    assert tomllib.loads(run.config.read_text())["schema"] == CONFIG_FORMAT.version
    state = run.checkpoint(1) / "state.json"
    assert json.loads(state.read_text())["format"] == 1
    state.write_text(json.dumps(json.loads(state.read_text()) | {"format": 99}))
    with pytest.raises(StorageError, match=r"step-000001' was written by a newer version \(format 99"):
        load_checkpoint(run.checkpoint(1), {})


def test_a_checkpoint_whose_adapter_a_newer_version_wrote_is_refused(tmp_path: Path) -> None:
    record(tiny_config(tmp_path, "run.name=a", "ppo.iterations=1"))
    checkpoint = RunFolder(tmp_path / "runs/a").checkpoint(1)
    change(checkpoint, "policy/adapter_config.json", schema=2)
    with pytest.raises(StorageError, match=r"policy' was written by a newer version \(schema 2"):
        load_checkpoint(checkpoint, {})


@pytest.mark.parametrize("name", ["reward_model.json", "state.json", "adapter/adapter_config.json"])
def test_a_reward_model_of_a_newer_version_is_refused(tmp_path: Path, name: str) -> None:
    tiny_config(tmp_path)
    train_reward_model(reward_config(tmp_path, "run.name=rm"), preferences=labelled(24))
    (checkpoint, *_) = checkpoints(RunFolder(tmp_path / "runs/rm")).paths
    assert read_card(checkpoint)["format"] == 2
    newer = shutil.copytree(checkpoint, tmp_path / "newer")
    change(newer, name, format=7, schema=7)
    with pytest.raises(StorageError, match="was written by a newer version"):
        load_snapshot(newer)


def test_a_runs_adapter_keeps_the_layers_that_auto_meant_when_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = record(tiny_config(tmp_path, "run.name=whole", "ppo.iterations=2", "data.eval_fraction=0.3"))
    run = RunFolder(tmp_path / "runs/part")
    record(tiny_config(tmp_path, "run.name=part", "ppo.iterations=1", "data.eval_fraction=0.3"))
    evaluated = evaluate_checkpoint(run, EvaluationOptions(), trust=trust_all).report
    monkeypatch.setattr("trainer.models.adapters._AUTO", frozenset(["o_proj"]))
    assert evaluate_checkpoint(run, EvaluationOptions(), trust=trust_all).report == evaluated
    assert SavedPolicy(run, trust=trust_all).iteration == 1
    config = load_config(run.config, {"ppo": {"iterations": 2}})
    resumed = record(config, resume=run.root)
    assert comparable(resumed.of(Iteration)[-1]) == comparable(whole.of(Iteration)[-1])
    assert load_config(run.config).model.lora_targets == ["auto"], "the rule, for a copy that trains another model"


def test_so_do_the_adapters_of_a_reward_model_and_of_dpo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "runs/rm"
    once, twice = (reward_config(tmp_path, "run.name=rm", f"train.epochs={epochs}") for epochs in (1, 2))
    train_reward_model(once, preferences=labelled(24))
    first, second = (dpo_config(tmp_path, "run.name=dpo", f"train.epochs={epochs}") for epochs in (1, 2))
    train_dpo(first, preferences=labelled(24))
    scores = load_reward_model(folder).score(["abc"])
    monkeypatch.setattr("trainer.models.adapters._AUTO", frozenset(["o_proj"]))
    assert load_reward_model(folder).score(["abc"]) == scores
    events = Recorder()
    train_reward_model(twice, preferences=labelled(24), resume=folder, sinks=[events])
    train_dpo(second, preferences=labelled(24), resume=tmp_path / "runs/dpo", sinks=[events])
    assert [(event.run_kind, event.resumed_at) for event in events.of(RunStarted)] == [("reward-model", 3), ("dpo", 3)]
    assert [event.iteration for event in events.of(DPOStep)] == [4, 5, 6]
    assert load_reward_model(folder).card["model"]["lora_targets"] == ["auto"]
