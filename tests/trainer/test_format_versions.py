"""Files carry the version that they were written in: older ones are brought to the present, newer ones are refused."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from config_files import config_problems
from preference_samples import labelled, reward_config
from runs_helper import record, tiny_config

from trainer.config import load_config
from trainer.config.fields import CONFIG_FORMAT
from trainer.config.schema import PPOConfig
from trainer.errors import ConfigError, StorageError, UsageError
from trainer.format_versions import Format
from trainer.ppo.checkpoint import load_checkpoint
from trainer.reward_model.reward_model_run import train_reward_model
from trainer.reward_model.snapshot import load_snapshot, read_card
from trainer.runs.checkpoint_index import checkpoints
from trainer.runs.folder import RunFolder


def renamed(old: str, new: str) -> Any:
    return lambda content: {new if key == old else key: value for key, value in content.items()}


FORMAT = Format("format", (renamed("a", "b"), renamed("b", "c")))


@pytest.mark.parametrize("content", [{"a": 1}, {"format": 1, "a": 1}, {"format": 2, "b": 1}, {"format": 3, "c": 1}])
def test_a_file_of_any_version_comes_to_the_present_one_and_one_without_a_number_is_of_the_first(
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
def test_what_has_no_version_is_damaged(content: Any) -> None:
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
    monkeypatch.setattr("trainer.config.loading.CONFIG_FORMAT", Format("schema", (moved,)))
    assert load_config(old).ppo.kl_coef == 0.3


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


def test_what_a_run_writes_has_its_versions_and_newer_ones_are_refused(tmp_path: Path) -> None:
    record(tiny_config(tmp_path, "run.name=a", "ppo.iterations=1"))
    run = RunFolder(tmp_path / "runs/a")
    assert tomllib.loads(run.config.read_text())["schema"] == CONFIG_FORMAT.version
    state = run.checkpoint(1) / "state.json"
    assert json.loads(state.read_text())["format"] == 1
    state.write_text(json.dumps(json.loads(state.read_text()) | {"format": 99}))
    with pytest.raises(StorageError, match=r"step-000001' was written by a newer version \(format 99"):
        load_checkpoint(run.checkpoint(1), {})


@pytest.mark.parametrize("name", ["reward_model.json", "state.json"])
def test_a_reward_model_of_a_newer_version_is_refused(tmp_path: Path, name: str) -> None:
    tiny_config(tmp_path)
    train_reward_model(reward_config(tmp_path, "run.name=rm"), preferences=labelled(24))
    (checkpoint, *_) = checkpoints(RunFolder(tmp_path / "runs/rm")).paths
    assert read_card(checkpoint)["format"] == 1
    newer = shutil.copytree(checkpoint, tmp_path / "newer")
    content = json.loads((newer / name).read_text())
    content.pop("sha256", None)
    (newer / name).write_text(json.dumps(content | {"format": 7, "files": {}}))
    with pytest.raises(StorageError, match="was written by a newer version"):
        load_snapshot(newer)
