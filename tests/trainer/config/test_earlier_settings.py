"""Settings of earlier versions are read as what this version has in their place, and what changes is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainer.config import config_warnings, load_config, parse_overrides, resolve_paths, with_seed
from trainer.config.dpo import DPOConfig
from trainer.config.fields import CONFIG_FORMAT
from trainer.config.loading import config_text, load_config_as, replaced_settings
from trainer.config.reward_model import RewardModelConfig
from trainer.errors import ConfigError

REMAX = '[ppo]\nestimator = "remax"\nwhiten_rewards = true\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(("schema", "kind"), [(RewardModelConfig, "reward-model"), (DPOConfig, "dpo")])
def test_a_backbone_in_float16_is_read_in_bfloat16_and_said_so(schema: Any, kind: str, tmp_path: Path) -> None:
    line = "model.dtype = 'float16' is from an earlier version: it is read as 'bfloat16'"
    path = written(tmp_path, '[model]\ndtype = "float16"\n')
    assert (load_config(path).model.dtype, replaced_settings(path)) == ("bfloat16", [line])
    path = written(tmp_path, f'kind = "{kind}"\n[model]\ndtype = "float16"\n')
    assert (load_config_as(schema, path).model.dtype, replaced_settings(path)) == ("bfloat16", [line])
    with pytest.raises(ConfigError, match="has too small a range for gradients"):
        load_config(written(tmp_path, f'schema = {CONFIG_FORMAT.version}\n[model]\ndtype = "float16"\n'))


def test_remax_is_read_without_the_whitening_that_its_baseline_does_not_have(tmp_path: Path) -> None:
    path = written(tmp_path, REMAX)
    assert load_config(path).ppo.whiten_rewards is False
    assert replaced_settings(path) == ["ppo.whiten_rewards = true is from an earlier version: it is read as false"]
    with pytest.raises(ConfigError, match="changes the scale of the rewards"):
        load_config(path, parse_overrides(["ppo.whiten_rewards=true"]))
    assert load_config(
        written(tmp_path, REMAX.replace("remax", "rloo") + "[rollout]\nsamples_per_prompt = 2\n")
    ).ppo.whiten_rewards


def test_a_value_clip_is_reported_with_what_replaces_it_and_both_units(tmp_path: Path) -> None:
    path = written(tmp_path, "[ppo]\nvalue_clip = 0.5\n")
    line = (
        "ppo.value_clip = 0.5 (in units of the reward) is from an earlier version: it is read as "
        "ppo.relative_value_clip = 2.5 (in units of the critic's error)"
    )
    assert replaced_settings(path) == [line]
    assert load_config(path).replaced == (line,)


def test_a_loaded_configuration_warns_of_what_was_replaced_until_it_is_set_again(tmp_path: Path) -> None:
    path = written(tmp_path, '[model]\ndtype = "float16"\n' + REMAX)
    config = load_config(path)
    assert list(config.replaced) == replaced_settings(path)
    assert len(config.replaced) == 2
    assert config_warnings(with_seed(resolve_paths(config, tmp_path)))[:2] == list(config.replaced)
    assert load_config(path, {"model": {"dtype": "float32"}}).replaced == config.replaced[1:]
    assert config_text(config) == config_text(config.with_replaced(()))


@pytest.mark.parametrize("known", ["[ppo]\nrelative_value_clip = 2.0\n", "[run]\nshared = true\n"])
def test_a_file_without_a_number_that_has_a_new_setting_is_not_from_an_earlier_version(
    known: str, tmp_path: Path
) -> None:
    path = written(tmp_path, '[model]\ndtype = "float16"\n' + known)
    with pytest.raises(ConfigError, match="has too small a range for gradients"):
        load_config(path)
    assert replaced_settings(path) == []
    path = written(tmp_path, "schema = 1\n" + path.read_text())
    assert load_config(path).model.dtype == "bfloat16", "it says its version"


def test_what_keeps_its_meaning_is_read_without_a_word(tmp_path: Path) -> None:
    assert replaced_settings(written(tmp_path, "[ppo]\nvalue_clip = 0\n")) == []
    assert replaced_settings(written(tmp_path, "schema = 2\n[ppo]\nvalue_clip = 0.5\n")) == []
    assert replaced_settings(written(tmp_path, config_text(load_config("quickstart")))) == []
    for unreadable in ("[ppo\n", "schema = 99\n", "schema = 'a'\n"):
        assert replaced_settings(written(tmp_path, unreadable)) == []
    assert replaced_settings(tmp_path / "nowhere.toml") == []


def test_an_unknown_key_that_was_known_names_its_replacement_with_the_value() -> None:
    with pytest.raises(ConfigError, match=r"'ppo.value_clip': its replacement is ppo.relative_value_clip = 2.5$"):
        load_config("quickstart", parse_overrides(["ppo.value_clip=0.5"]))


def test_a_value_clip_that_no_number_can_hold_is_reported_by_its_replacement(tmp_path: Path) -> None:
    path = written(tmp_path, f"[ppo]\nvalue_clip = 1{400 * '0'}\n")
    with pytest.raises(ConfigError, match=r"ppo.relative_value_clip"):
        load_config(path)
    assert len(replaced_settings(path)) <= 1
