"""Files carry the version of their format: newer ones are refused."""

from __future__ import annotations

import json
import re
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
from trainer.engine.training import train
from trainer.errors import ConfigError, StorageError
from trainer.files import FileFormat
from trainer.policy_checkpoint import load_checkpoint
from trainer.reward_model.snapshot import load_snapshot, read_card
from trainer.runs.checkpoint_files import checkpoints, write_state
from trainer.runs.folder import RunFolder

FORMAT = FileFormat("format")


def test_a_file_without_a_number_is_of_the_first_version_and_a_newer_one_is_refused_by_name() -> None:
    assert FORMAT.current({"a": 1}, "it") == FORMAT.current({"format": 1, "a": 1}, "it") == {"format": 1, "a": 1}
    with pytest.raises(StorageError) as raised:
        FORMAT.current({"format": 2}, "card 'x'")
    assert str(raised.value) == (
        "card 'x' was written by a newer version (format 2, this one knows up to 1): update ppo-workbench"
    )


@pytest.mark.parametrize("content", [[], None, "a", {"format": "1"}, {"format": 0}, {"format": True}, {"format": 1.5}])
def test_a_file_without_a_version_is_damaged(content: Any) -> None:
    with pytest.raises(ValueError, match=r"table|whole number"):
        FORMAT.current(content, "it")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        ("2", r"config.toml: the file was written by a newer version \(schema 2, .*update"),
        ("'1'", "schema = '1': must be a whole number from 1 to 1"),
        ("0", "schema = 0: must be"),
    ],
)
def test_a_configuration_of_another_version_is_refused(tmp_path: Path, number: str, words: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f"schema = {number}\n[ppo]\nkl_coef = 0.3\n")
    with pytest.raises(ConfigError, match=words):
        load_config(path)
    (problem,) = config_problems(tomllib.loads(path.read_text()))
    assert re.search(words.removeprefix("config.toml: "), problem)


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
    change(run.checkpoint(1), "policy/adapter_config.json", schema=2)
    with pytest.raises(StorageError, match=r"policy' was written by a newer version \(schema 2"):
        load_checkpoint(run.checkpoint(1), {})
    state.write_text(json.dumps(json.loads(state.read_text()) | {"format": 99}))
    with pytest.raises(StorageError, match=r"step-000001' was written by a newer version \(format 99"):
        load_checkpoint(run.checkpoint(1), {})


@pytest.mark.parametrize("name", ["reward_model.json", "state.json", "adapter/adapter_config.json"])
def test_a_reward_model_of_a_newer_version_is_refused(tmp_path: Path, name: str) -> None:
    tiny_config(tmp_path)
    train(reward_config(tmp_path, "run.name=rm"), preferences=labelled(24))
    (checkpoint, *_) = checkpoints(RunFolder(tmp_path / "runs/rm")).paths
    assert read_card(checkpoint)["format"] == 1
    newer = shutil.copytree(checkpoint, tmp_path / "newer")
    change(newer, name, format=7, schema=7)
    with pytest.raises(StorageError, match="was written by a newer version"):
        load_snapshot(newer)
