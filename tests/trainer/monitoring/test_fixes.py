"""The fixes of an alarm: computed from the configuration, and always possible."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from health_helper import ADAPTIVE, FLAT, alarms, config_of, from_20, healthy, in_40, one

from trainer.engine.live_settings import with_setting
from trainer.events import (
    CheckpointSaved,
)


def test_fixes_are_computed_from_the_configuration() -> None:
    config = config_of(ppo={"epochs": 4}, optim={"policy_lr": 3e-4})
    (alarm,) = alarms(healthy(40, clip_fraction=from_20(0.25, 0.03)), config)
    assert [(fix.label, fix.key, fix.value) for fix in alarm.fixes] == [
        ("lower epochs to 2", "ppo.epochs", 2),
        ("lower policy_lr to 0.00015", "optim.policy_lr", 1.5e-4),
    ]


def test_a_penalty_is_doubled_from_the_controllers_current_value() -> None:
    rows = healthy(40, kl=from_20(19.0, 6.0), kl_coef=lambda n: 0.3)
    assert one(rows, config_of(**ADAPTIVE)).fixes[0].value == 0.6
    none = config_of(ppo={"kl_coef": 0.0, "kl_controller": "fixed"})
    off = healthy(40, kl=from_20(80.0, 2.0), kl_coef=lambda n: 0.0, **FLAT)
    assert one(off, none).fixes[0].value == 0.05


def test_a_setting_at_its_limit_is_not_offered() -> None:
    config = config_of(ppo={"epochs": 1}, optim={"policy_lr": 0.0})
    (alarm,) = alarms(healthy(40, clip_fraction=from_20(0.25, 0.03)), config)
    assert alarm.fixes == []


def test_a_rollback_is_offered_once_there_is_a_checkpoint() -> None:
    rows = healthy(40, clip_fraction=from_20(0.25, 0.03))
    saved = CheckpointSaved(iteration=10, path="checkpoints/step-000010", seconds=0.1)
    assert "rollback" not in [fix.action for fix in one(rows).fixes]
    assert "rollback" in [fix.action for fix in one([*rows[:10], saved, *rows[10:]]).fixes]


def test_a_target_length_is_added_to_the_existing_sources() -> None:
    config = config_of(reward={"sources": ["lexicon", {"kind": "regex", "pattern": "a", "weight": 0.5}]})
    rows = healthy(40, truncated=from_20(0.35, 0.0), response_length=lambda n: 31.6, score_std=lambda n: 0.25)
    fix = one(rows, config).fixes[0]
    assert fix.label == "also reward a length of 32 tokens"
    sources = with_setting(config, fix.key, fix.value).reward.sources
    assert list(sources[:2]) == list(config.reward.sources)
    assert sources[2].model_dump() == {"kind": "length", "target": 32, "tolerance": 16, "weight": 0.5}


def test_a_clip_that_is_narrow_is_not_made_narrower() -> None:
    rows = healthy(40, ratio_mean=in_40(11.0, 1.0))
    keys = [fix.key for fix in one(rows, config_of(ppo={"clip": 0.06})).fixes]
    assert keys == ["optim.policy_lr", "ppo.epochs", "ppo.clip"]
    assert "ppo.clip" not in [fix.key for fix in one(rows, config_of(ppo={"clip": 0.05})).fixes]


@pytest.mark.parametrize(("now", "then"), [(0.0, 0.01), (0.02, 0.04)])
def test_an_entropy_bonus_is_started_or_doubled(now: float, then: float) -> None:
    alarm = one(healthy(40, entropy=from_20(0.34, 3.4)), config_of(ppo={"entropy_coef": now}))
    assert alarm.fixes[0].value == then


@pytest.mark.parametrize(("length", "deviation"), [(0.4, 0.25), (32.0, 0.0), (32.0, math.nan)])
def test_a_target_length_is_offered_only_where_length_and_score_determine_it(length: float, deviation: float) -> None:
    rows = healthy(40, truncated=from_20(0.35, 0.0), response_length=lambda n: length, score_std=lambda n: deviation)
    alarm = next(alarm for alarm in alarms(rows) if alarm.code == "truncation")
    assert "reward.sources" not in [fix.key for fix in alarm.fixes]


@pytest.mark.parametrize(("loss", "rates"), [(from_20(0.2, 0.1), [1e-5, 3e-4]), (from_20(0.4, 0.1), [1e-5])])
def test_a_critic_is_slowed_and_one_that_does_not_run_away_may_be_sped_up(
    loss: Callable[[int], float], rates: list[float]
) -> None:
    rows = healthy(40, explained_variance=from_20(-0.3, 0.2), value_loss=loss)
    alarm = one(rows, config_of(optim={"value_lr": 1e-4}))
    assert [fix.value for fix in alarm.fixes if fix.key == "optim.value_lr"] == pytest.approx(rates)
