"""Settings of other trainers: no setting of ours is dropped, and each value is the one that means the same."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from trainer.config.problems import setting_keys
from trainer.config.schema import Config
from trainer.exchange import report
from trainer.exchange.settings import TABLES, TRL_CONFIGS, RunFacts, cells_of, markdown, settings_table, translated

ROOT = Path(__file__).resolve().parents[3]
MODEL = {"sources": [{"kind": "model", "path": "liked"}]}


def facts(*, reward_model: str = "reward-model", **tables: Mapping[str, Any]) -> RunFacts:
    """Return a run's facts with the settings `tables`; its reward is one reward model."""
    config = Config.model_validate({"reward": MODEL} | {name: dict(table) for name, table in tables.items()})
    return RunFacts(config, 100, reward_model=reward_model, value_model="value-model")


def test_every_setting_has_a_row_and_every_row_a_setting() -> None:
    keys = list(setting_keys())
    assert {*settings_table()} <= {*keys, *(f"{key.partition('.')[0]}.*" for key in keys)}
    for name, key in product(TABLES, keys):
        for cell in cells_of(key, name):
            assert sum(map(bool, (cell.to, cell.no, cell.elsewhere))) == 1, "a cell is one of the three"
            assert not (cell.note + cell.no + cell.elsewhere).endswith(".")
    assert {column for row in settings_table().values() for column in row} <= {*TABLES, "trl", "all"}


@pytest.mark.parametrize("estimator", ["gae", "reinforce", "rloo", "remax", "grpo"])
@pytest.mark.parametrize("changed", [False, True])
def test_every_setting_is_translated_missing_or_elsewhere(estimator: str, *, changed: bool) -> None:
    more: dict[str, Any] = {"rollout": {"samples_per_prompt": 2, "stop": ["END"]}} if changed else {}
    ppo = {"estimator": estimator, "kl_controller": "adaptive" if changed else "fixed"}
    ppo |= {"kl_in": "loss", "kl_estimator": "k3", "clip_high": 0.3, "dual_clip": 3.0} if changed else {}
    for name in TABLES:
        found = translated(facts(ppo=ppo, **more), name)
        used = {key for keys in found.sources.values() for key in keys}
        assert used | {row.key for row in found.missing} | found.elsewhere.keys() == set(setting_keys())


def test_a_setting_without_a_row_is_an_error() -> None:
    with pytest.raises(KeyError, match=r"ppo\.unknown"):
        cells_of("ppo.unknown", "verl")


def test_the_settings_of_ppo_in_trl() -> None:
    found = translated(
        facts(
            rollout={"batch_size": 64, "max_new_tokens": 32, "temperature": 0.7},
            ppo={"iterations": 10, "epochs": 2, "minibatches": 4, "kl_coef": 0.1, "kl_estimator": "k3", "clip": 0.1},
            optim={"warmup_steps": 20, "policy_lr": 3e-5, "schedule": "constant"},
            model={"dtype": "float32"},
        ),
        "ppo",
    ).values
    expected = {
        "total_episodes": 640,
        "per_device_train_batch_size": 64,
        "gradient_accumulation_steps": 1,
        "num_mini_batches": 4,
        "num_ppo_epochs": 2,
        "response_length": 32,
        "temperature": 0.7,
        "stop_token": "eos",
        "kl_coef": 0.1,
        "kl_estimator": "k3",
        "cliprange": 0.1,
        "learning_rate": 3e-5,
        "warmup_steps": 3,  # iterations of 8 steps
        "lr_scheduler_type": "constant_with_warmup",
        "bf16": False,
    }
    assert {name: found[name] for name in expected} == expected


def test_the_settings_of_grpo_in_trl() -> None:
    ppo = {"estimator": "grpo", "kl_in": "loss", "minibatches": 4, "epochs": 2, "iterations": 5, "group_std": False}
    given = facts(rollout={"batch_size": 64, "samples_per_prompt": 8}, ppo=ppo | {"loss_aggregation": "constant"})
    found = translated(given, "grpo").values
    expected = {
        "num_generations": 8,
        "per_device_train_batch_size": 16,
        "steps_per_generation": 4,
        "num_iterations": 2,
        "max_steps": 40,
        "scale_rewards": "none",
        "loss_type": "dr_grpo",
        "beta": 0.05,
        "delta": None,
    }
    assert {name: found[name] for name in expected} == expected


def test_the_settings_of_rloo_in_trl() -> None:
    given = facts(rollout={"samples_per_prompt": 4}, ppo={"estimator": "rloo"}, reward={**MODEL, "clip": 3.0})
    found = translated(given, "rloo").values
    assert (found["num_generations"], found["reward_clip_range"], found["normalize_advantages"]) == (4, [-3, 3], True)
    assert "reward_clip_range" not in translated(facts(ppo={"estimator": "rloo"}), "rloo").values


def test_verl_evaluates_only_if_there_are_held_out_prompts() -> None:
    given = facts(eval={"every": 5})
    for held_out, every, file in ((3, 5, "prompts-held-out"), (0, -1, "prompts")):
        found = report.engine("verl", given._replace(held_out=held_out))
        assert found.translation is not None
        assert found.translation.values["trainer.test_freq"] == every
        assert f'data.val_files="$PWD"/verl/{file}.parquet' in found.files["verl/train.sh"]


def test_the_settings_in_openrlhf() -> None:
    given = facts(
        rollout={"batch_size": 64, "samples_per_prompt": 4, "max_new_tokens": 50},
        ppo={"iterations": 20, "minibatches": 2, "kl_controller": "adaptive", "kl_target": 5.0, "clip_high": 0.3},
        reward={**MODEL, "clip": 2.0, "overlong_penalty": 0.5, "overlong_tokens": 10},
        optim={"beta2": 0.99, "warmup_steps": 16},
    )
    found = translated(given, "openrlhf").values
    expected = {
        "rollout.batch_size": 16,
        "train.batch_size": 32,
        "train.num_episodes": 4,  # 20 x 16 prompts of 100
        "algo.kl.target": 0.1,
        "actor.eps_clip_low_high": [0.2, 0.3],
        "actor.adam.betas": [0.9, 0.99],
        "critic.adam.betas": [0.9, 0.99],
        "actor.lr_warmup_ratio": 16 / 160,
        "reward.clip_range": [-2.0, 2.0],
        "reward.overlong_buffer_len": 10,
        "reward.overlong_penalty_factor": 0.5,
        "reward.normalize_enable": True,
        "algo.kl.use_loss": False,
        "data.max_len": 562,
    }
    assert {name: found[name] for name in expected} == expected
    assert "actor.dual_clip" not in found


def test_the_settings_in_verl() -> None:
    ppo = {"estimator": "grpo", "kl_in": "loss", "kl_estimator": "k3", "dual_clip": 4.0, "minibatches": 2}
    given = facts(rollout={"batch_size": 64, "samples_per_prompt": 4, "top_k": 0}, ppo=ppo, optim={"eps": 1e-6})
    found = translated(given, "verl").values
    expected = {
        "data.train_batch_size": 16,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 8,
        "actor_rollout_ref.rollout.n": 4,
        "actor_rollout_ref.rollout.top_k": -1,
        "algorithm.adv_estimator": "grpo",
        "algorithm.use_kl_in_reward": False,
        "actor_rollout_ref.actor.use_kl_loss": True,
        "actor_rollout_ref.actor.kl_loss_coef": 0.05,
        "actor_rollout_ref.actor.kl_loss_type": "low_var_kl",
        "actor_rollout_ref.actor.clip_ratio_c": 4.0,
        "actor_rollout_ref.actor.clip_ratio_high": 0.2,
        "actor_rollout_ref.actor.optim.override_optimizer_config": {"eps": 1e-6},
        "actor_rollout_ref.model.lora_adapter_path": "policy",
    }
    assert {name: found[name] for name in expected} == expected
    assert "algorithm.kl_ctrl.kl_coef" not in found
    assert "critic.model.path" not in found


def test_a_setting_is_lost_if_it_has_no_counterpart_and_its_value_does_something() -> None:
    found = {row.key: row for row in translated(facts(ppo={"kl_estimator": "k2", "entropy_coef": 0.01}), "ppo").missing}
    assert found["ppo.kl_estimator"].in_use
    assert found["ppo.kl_estimator"].why == "kl_estimator has no such value (counterparts: k1, k3)"
    assert found["ppo.entropy_coef"].in_use
    assert found["ppo.ratio_threshold"].in_use
    assert not found["ppo.dual_clip"].in_use
    assert not found["convergence.on_target"].in_use


@pytest.mark.parametrize("name", TABLES)
def test_a_reward_that_is_no_one_reward_model_is_lost(name: str) -> None:
    doubled = {"kind": "model", "path": "liked", "weight": 2.0}
    measured_alone = {"kind": "lexicon", "weight": 0.0}
    for sources, lost in (
        (["lexicon"], True),
        ([doubled], True),
        ([*MODEL["sources"], "lexicon"], True),
        ([*MODEL["sources"], measured_alone], False),
    ):
        found = translated(facts(reward={"sources": sources}), name)
        assert ("reward.sources" in {row.key for row in found.missing if row.in_use}) == lost


@pytest.mark.parametrize(("table", "lost"), [("rloo", False), ("grpo", False), ("ppo", True)])
def test_trl_takes_a_function_in_place_of_a_reward_model(table: str, *, lost: bool) -> None:
    given = facts(reward={"sources": ["rewards.py:score"]})._replace(
        reward_model="", reward_function="rewards.py:score"
    )
    assert ("reward.sources" in {row.key for row in translated(given, table).missing}) == lost


def test_trl_has_no_trainer_for_every_estimator() -> None:
    engine = report.engine("trl", facts(ppo={"estimator": "remax"}))
    assert (engine.translation, engine.files) == (None, {})


@pytest.mark.parametrize("name", ["openrlhf", "verl"])
def test_the_command_of_a_script_has_one_word_for_each_setting(name: str) -> None:
    engine = report.engine(name, facts()._replace(base="/models/it's mine"))
    (script,) = engine.files.values()
    command = script[script.index("python3 -m", script.index("# The last lines")) :].replace("\\\n", " ")
    words = shlex.split(command.replace('"$PWD"', "/here"))
    assert words[:2] == ["python3", "-m"]
    values = engine.translation.values if engine.translation else {}
    if name == "verl":
        given = dict(word.split("=", 1) for word in words[3:])
        assert given["actor_rollout_ref.model.path"] == r"'/models/it\'s mine'"
        assert given["actor_rollout_ref.model.lora_adapter_path"] == "/here/policy"
        assert given["trainer.logger"] == "[console]"
        assert values.keys() | {"trainer.n_gpus_per_node", "trainer.nnodes"} <= given.keys()
    else:
        flags = {word.removeprefix("--") for word in words if word.startswith("--")}
        assert "reward.normalize_enable" in flags
        assert "algo.kl.use_loss" not in flags  # false
        assert "--model_path '/models/it'\"'\"'s mine'" in script
        assert words[words.index("--actor.adam.betas") + 1 :][:2] == ["0.9", "0.999"]
        assert words[words.index("--reward.model_name_or_path") + 1] == "/here/reward-model"


def test_the_settings_of_trl_are_json() -> None:
    for estimator, shared in product(TRL_CONFIGS, (False, True)):
        given = facts(ppo={"estimator": estimator}, rollout={"samples_per_prompt": 2 if shared else 1})
        about = json.loads(report.engine("trl", given).files["trl/config.json"])
        assert about["trainer"] == TRL_CONFIGS[estimator]
        assert about["settings"]["seed"] == 0


def test_the_readme_names_every_setting() -> None:
    given = facts()
    engines = [report.engine(name, given) for name in report.ENGINES]
    text = report.readme("a run", given, engines, {"policy": "the adapter"}, ["a warning"])
    for section in text.split("\n## ")[1:]:
        assert [key for key in setting_keys() if f"| {key} |" not in section] == []
    assert "- a warning" in text


def test_the_page_has_the_table_of_the_settings() -> None:
    page = (ROOT / "docs" / "other-engines.md").read_text(encoding="utf-8")
    table = "\n".join(markdown())
    assert table in page, "run: python -m trainer.exchange.settings, and put its output into docs/other-engines.md"
    assert "| ppo.lam | `lam` |  | `algo.advantage.lambd` | `algorithm.lam` |" in table
    assert "| ppo.target_approx_kl | - | - | - | - |" in table
    assert "run.shared" not in table
