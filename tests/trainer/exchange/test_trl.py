"""Settings in TRL: no setting of ours is dropped, and each value is the one that means the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from trainer.config.problems import setting_keys
from trainer.config.schema import Config
from trainer.exchange.trl import SETTINGS, TRAINERS, RunFacts, cells_of, markdown, readme, translated, trl_files

ROOT = Path(__file__).resolve().parents[3]
MODEL = {"sources": [{"kind": "model", "path": "liked"}]}


def facts(*, reward_model: str = "reward-model", reward_function: str = "", **tables: Mapping[str, Any]) -> RunFacts:
    """Return a run's facts with the settings `tables`; its reward is one reward model."""
    config = Config.model_validate({"reward": MODEL} | {name: dict(table) for name, table in tables.items()})
    return RunFacts(config, reward_model=reward_model, reward_function=reward_function, value_model="value-model")


def there(given: RunFacts) -> dict[str, Any]:
    return {name: value for row in translated(given) for name, value in row.there.items()}


def kinds(given: RunFacts) -> dict[str, str]:
    return {row.key: row.kind for row in translated(given)}


def test_every_setting_has_a_row_and_every_row_a_setting() -> None:
    keys = list(setting_keys())
    assert {*SETTINGS} == {"elsewhere", "trl", *map(str.lower, TRAINERS.values())}
    known = {*keys, *(f"{key.partition('.')[0]}.*" for key in keys)}
    assert {key for section in SETTINGS.values() for key in section} <= known
    for trainer in TRAINERS.values():
        for cell in (cell for key in keys for cell in cells_of(key, trainer.lower())):
            assert sum(map(bool, (cell.to, cell.no, cell.elsewhere))) == 1, "a cell is one of the three"
            assert not (cell.note + cell.no + cell.elsewhere).endswith(".")
    with pytest.raises(KeyError, match=r"ppo\.unknown"):
        cells_of("ppo.unknown", "grpo")


GAE = {"iterations": 10, "epochs": 2, "minibatches": 4, "kl_coef": 0.1, "kl_estimator": "k3", "clip": 0.1}
GRPO = {"estimator": "grpo", "kl_in": "loss", "minibatches": 4, "epochs": 2, "iterations": 5, "group_std": False}
CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {
            "rollout": {"batch_size": 64, "max_new_tokens": 32, "temperature": 0.7},
            "ppo": GAE,
            "optim": {"warmup_steps": 20, "policy_lr": 3e-5, "schedule": "constant"},
            "model": {"dtype": "float32"},
        },
        {
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
        },
    ),
    (
        {"rollout": {"batch_size": 64, "samples_per_prompt": 8}, "ppo": GRPO | {"loss_aggregation": "constant"}},
        {
            "num_generations": 8,
            "per_device_train_batch_size": 16,
            "steps_per_generation": 4,
            "num_iterations": 2,
            "max_steps": 40,
            "scale_rewards": "none",
            "loss_type": "dr_grpo",
            "beta": 0.05,
            "delta": None,
        },
    ),
    (
        {"rollout": {"samples_per_prompt": 4}, "ppo": {"estimator": "rloo"}, "reward": {**MODEL, "clip": 3.0}},
        {"num_generations": 4, "reward_clip_range": [-3, 3], "normalize_advantages": True},
    ),
]


@pytest.mark.parametrize(("settings", "expected"), CASES, ids=TRAINERS.values())
def test_a_value_there_means_the_same_as_ours(settings: dict[str, Any], expected: dict[str, Any]) -> None:
    given = facts(**settings)
    found = there(given)
    assert {name: found[name] for name in expected} == expected
    assert [row.key for row in translated(given)] == list(setting_keys())
    about = json.loads(trl_files(given, translated(given))["trl/config.json"])
    assert about["trainer"] == TRAINERS[given.config.ppo.estimator] + "Config"
    assert about["settings"] == found


def test_a_setting_that_is_off_has_no_value_there() -> None:
    assert "reward_clip_range" not in there(facts(ppo={"estimator": "rloo"}))


def test_a_setting_is_lost_if_it_has_no_counterpart_and_its_value_does_something() -> None:
    given = facts(ppo={"kl_estimator": "k2", "entropy_coef": 0.01})
    found = kinds(given)
    assert {found[f"ppo.{name}"] for name in ("kl_estimator", "entropy_coef", "ratio_threshold")} == {"lost"}
    assert found["ppo.dual_clip"] == found["convergence.on_target"] == "off"
    note = next(row.note for row in translated(given) if row.key == "ppo.kl_estimator")
    assert note == "kl_estimator has no such value (counterparts: k1, k3)"


@pytest.mark.parametrize("estimator", TRAINERS)
def test_a_reward_that_is_no_one_reward_model_is_lost(estimator: str) -> None:
    doubled = {"kind": "model", "path": "liked", "weight": 2.0}
    measured_alone = {"kind": "lexicon", "weight": 0.0}
    for sources, kind in (
        (["lexicon"], "lost"),
        ([doubled], "lost"),
        ([*MODEL["sources"], "lexicon"], "lost"),
        ([*MODEL["sources"], measured_alone], "there"),
    ):
        given = facts(reward={"sources": sources}, ppo={"estimator": estimator}, rollout={"samples_per_prompt": 2})
        assert kinds(given)["reward.sources"] == kind


@pytest.mark.parametrize(("estimator", "kind"), [("rloo", "there"), ("grpo", "there"), ("gae", "lost")])
def test_trl_takes_a_function_in_place_of_a_reward_model(estimator: str, kind: str) -> None:
    given = facts(
        reward={"sources": ["rewards.py:score"]},
        reward_model="",
        reward_function="rewards.py:score",
        ppo={"estimator": estimator},
        rollout={"samples_per_prompt": 2},
    )
    assert kinds(given)["reward.sources"] == kind


def test_the_readme_names_every_setting() -> None:
    text = "\n".join(readme("a run", {"policy": "the adapter"}, ["a warning"], translated(facts())))
    assert [key for key in setting_keys() if f"| {key} |" not in text] == []
    assert "- a warning" in text


def test_the_page_has_the_table_of_the_settings() -> None:
    page = (ROOT / "docs" / "other-engines.md").read_text(encoding="utf-8")
    table = "\n".join(markdown())
    assert table in page, "run: python -m trainer.exchange.trl, and put its output into docs/other-engines.md"
    assert "| ppo.lam | `lam` |  |" in table
    assert "| ppo.target_approx_kl | - | - |" in table
    assert "run.shared" not in table
