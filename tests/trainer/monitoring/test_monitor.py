"""Every sign raises its alarm once, with numbers and fixes, in real runs too, and a healthy run raises none."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from health_helper import (
    ADAPTIVE,
    FLAT,
    LONGER,
    alarms,
    alerts_of,
    config_of,
    from_20,
    healthy,
    in_40,
    one,
    ranks,
    reported,
)
from runs_helper import record, tiny_config
from scripted_run import iteration, started

from trainer.engine.live_settings import with_setting
from trainer.events import Alarm, CheckpointSaved, Event, RolledBack, RunEnded, SettingChanged
from trainer.monitoring import ALARM_RULES, Monitor
from trainer.monitoring.history import History
from trainer.monitoring.monitor import AWAY
from trainer.runs.journal import event_in, read_journal
from trainer.runs.listing import list_runs


@pytest.mark.parametrize("seed", range(30))
def test_a_healthy_run_raises_nothing(seed: int) -> None:
    assert reported([started(), *healthy(100, seed)]) == []


NUMBERS = tuple(
    name
    for name, value in iteration(1).as_dict().items()
    if isinstance(value, float) and name not in ("tokens_per_second", "kl_coef", "policy_lr", "value_lr")
)


@pytest.mark.parametrize("name", NUMBERS)
def test_an_unknown_number_raises_nothing(name: str) -> None:
    assert reported(replace(row, **{name: math.nan}) for row in healthy(60)) == []


class Case(NamedTuple):
    changes: dict[str, Callable[[int], Any]]
    first: tuple[int, str, str]  # iteration, code and level of the first alarm
    last: str = ""  # level of a further one
    tables: Mapping[str, dict[str, Any]] = MappingProxyType({})


SIGNS = {
    # The penalty takes 0.05 * 24 = 1.2; the score has gained about 0.4, its deviation is 0.4.
    "a KL that costs more than it brings": Case({"kl": from_20(24.0, 2.0)}, (24, "kl_high", "warning")),
    "a KL three times its target": Case({"kl": from_20(19.0, 6.0)}, (25, "kl_high", "warning"), "", ADAPTIVE),
    "a KL for no score": Case({"kl": from_20(80.0, 2.0), "kl_coef": lambda n: 0.0, **FLAT}, (24, "kl_high", "error")),
    "a KL of 0": Case({"kl": lambda n: 0.0}, (5, "not_training", "error")),
    "a gradient of 0": Case({"grad_norm": from_20(0.0, 3.0)}, (25, "not_training", "error")),
    "a KL below 0": Case({"kl": from_20(-0.06, 4.0)}, (32, "kl_negative", "warning")),
    "tokens that surprise too little": Case(
        {"entropy": lambda n: 5.03, "surprise": from_20(4.59, 5.03), "surprise_error": lambda n: 0.05},
        (23, "sampling_bias", "warning"),
        "error",
    ),
    "a sampler that is scored otherwise": Case(
        {"sampler_mismatch": from_20(0.3, 1e-5)}, (24, "sampling_bias", "warning")
    ),
    "an entropy of a tenth": Case({"entropy": from_20(0.34, 3.4)}, (23, "entropy_collapse", "warning")),
    "a fourth clipped": Case({"clip_fraction": from_20(0.25, 0.03)}, (23, "clip_saturation", "warning")),
    "a skipped minibatch": Case(
        {"spiked_steps": in_40(1, 0), "skipped_steps": in_40(1, 0)}, (40, "ratio_spike", "warning")
    ),
    "many skipped minibatches": Case(
        {"spiked_steps": from_20(1, 0), "skipped_steps": from_20(1, 0)}, (21, "ratio_spike", "warning"), "error"
    ),
    "equal scores": Case(
        {"score_min": from_20(0.2, -0.7), "score_max": from_20(0.2, 0.9), "score_mean": from_20(0.2, 0.2)},
        (23, "no_signal", "warning"),
        "error",
    ),
    "equal advantages": Case({"advantage_std": from_20(0.0, 0.3)}, (23, "no_signal", "warning"), "error"),
    "no steps": Case({"steps": from_20(0, 2)}, (23, "no_signal", "warning"), "error"),
    "a critic worse than a constant": Case({"explained_variance": from_20(-0.3, 0.2)}, (30, "critic_lost", "warning")),
    "a critic that moves the policy": Case({"critic_share": in_40(0.6, 0.1)}, (40, "critic_pull", "warning")),
    "a gradient of 11 times": Case({"grad_norm_max": in_40(44.0, 4.0)}, (40, "gradient_spike", "warning")),
    "a step that was NaN": Case({"skipped_steps": in_40(1, 0)}, (40, "step_nan", "error")),
    # Of the last ten correlations about eight must be 0.95 for a mean above 0.75.
    "a length that pays": Case(
        {**LONGER, "length_correlation": from_20(0.95, 0.1)}, (28, "length_exploitation", "warning")
    ),
    # 40 sequences each: 11 cut against none are 3.6 deviations, 14 are 4.1.
    "a third cut": Case({"truncated": from_20(0.35, 0.0)}, (25, "truncation", "warning")),
    "most cut": Case({"truncated": from_20(0.9, 0.0)}, (22, "truncation", "warning"), "error"),
    "loops": Case({"repetition": from_20(0.4, 0.05)}, (24, "repetition", "warning")),
    "half the speed": Case({"tokens_per_second": from_20(12.0, 25.0)}, (28, "throughput", "warning")),
    "a slow rank": Case({"ranks": from_20(ranks(9.0, 1.0), ranks(3.0, 3.0))}, (30, "straggler", "warning")),
}


@pytest.mark.parametrize("name", SIGNS)
def test_a_sign_that_lasts_raises_its_own_alarm_with_numbers_advice_and_valid_changes(name: str) -> None:
    changes, first, last, tables = SIGNS[name]
    config = config_of(**tables)
    found = alarms([started(), CheckpointSaved(iteration=1, path="", seconds=0.1), *healthy(40, **changes)], config)
    raised = [(alarm.iteration, alarm.code, alarm.level) for alarm in found]
    assert raised[0] == first
    assert [(code, level) for _, code, level in raised[1:]] == [(first[1], last)] * bool(last)
    for alarm in found:
        assert len(alarm.evidence) >= 2
        assert all(math.isfinite(value) for value in alarm.evidence.values())
        assert alarm.message
        assert alarm.advice.endswith(".")
        assert alarm.fixes
        assert alarm == event_in(json.loads(json.dumps(alarm.as_dict())))
        for fix in alarm.fixes:
            if fix.action == "set":
                assert with_setting(config, fix.key, fix.value) != config


def test_every_rule_has_a_sign_that_raises_it() -> None:
    assert set(ALARM_RULES) - {case.first[1] for case in SIGNS.values()} == {"reward_hacking"}  # below


@pytest.mark.parametrize(("comes_back", "reported_again"), [(32, False), (33, True)])
def test_an_alarm_is_raised_again_after_its_sign_was_gone_for_ten_iterations(
    comes_back: int, reported_again: bool
) -> None:
    """The sign lasts until 24; since it takes three iterations to count, it counts again two after it comes back."""
    rows = healthy(50, clip_fraction=lambda n: 0.25 if n in range(20, 25) or n >= comes_back else 0.03)
    first, again = (22, "clip_saturation", "warning"), (comes_back + 2, "clip_saturation", "warning")
    assert reported(rows) == ([first, again] if reported_again else [first])


def test_an_alarm_that_gets_worse_is_raised_again_and_one_that_gets_better_is_not() -> None:
    worse = healthy(40, clip_fraction=lambda n: 0.5 if n > 30 else 0.25 if n > 20 else 0.03)
    assert reported(worse) == [(23, "clip_saturation", "warning"), (33, "clip_saturation", "error")]
    better = healthy(40, clip_fraction=lambda n: 0.25 if n > 30 else 0.5 if n > 20 else 0.03)
    assert reported(better) == [(23, "clip_saturation", "error")]


def setting(iteration: int, key: str, value: float) -> SettingChanged:
    return SettingChanged(iteration=iteration, key=key, old=None, value=value)


def test_an_alarm_is_raised_again_if_its_fix_does_not_help_in_ten_iterations() -> None:
    """Each change of a setting named by its fixes gets ten iterations to take effect."""
    clipped = healthy(60, clip_fraction=from_20(0.25, 0.03))
    rate = "optim.policy_lr"
    (alarm,) = alarms(clipped)
    assert rate in {fix.key for fix in alarm.fixes}
    first, at_35, at_40 = [(n, "clip_saturation", "warning") for n in (23, 35, 40)]
    assert reported([*clipped[:25], setting(25, rate, 1e-5), *clipped[25:]]) == [first, at_35]
    twice = [*clipped[:25], setting(25, rate, 1e-5), *clipped[25:30], setting(30, rate, 5e-6), *clipped[30:]]
    assert reported(twice) == [first, at_40]
    helped = healthy(60, clip_fraction=lambda n: 0.25 if 20 < n < 32 else 0.03)
    assert reported([*helped[:25], setting(25, rate, 1e-5), *helped[25:]]) == [first]
    assert reported([*clipped[:25], setting(25, "ppo.entropy_coef", 0.1), *clipped[25:]]) == [first]


def test_ignored_codes_and_disabled_alarms_are_not_raised() -> None:
    rows = healthy(40, clip_fraction=from_20(0.25, 0.03), entropy=from_20(0.34, 3.4))
    assert {code for _, code, _ in reported(rows)} == {"clip_saturation", "entropy_collapse"}
    ignoring = config_of(health={"ignore": ["clip_saturation"]})
    assert {code for _, code, _ in reported(rows, ignoring)} == {"entropy_collapse"}
    assert reported(rows, config_of(health={"alarms": False})) == []


def test_rolled_back_iterations_are_forgotten_and_their_alarm_is_raised_again() -> None:
    clipped = healthy(40, clip_fraction=from_20(0.25, 0.03))
    back = RolledBack(iteration=25, to=20, reason="")
    assert reported([*clipped[:25], back, *clipped[25:]]) == [
        (23, "clip_saturation", "warning"),
        (28, "clip_saturation", "warning"),
    ]
    into_it = RolledBack(iteration=30, to=25, reason="")  # where the sign was there already
    found = reported([*clipped[:30], into_it, *clipped[30:]])
    assert found == [(23, "clip_saturation", "warning"), (33, "clip_saturation", "warning")]
    two_and_one = [*healthy(22, clip_fraction=from_20(0.25, 0.03)), RolledBack(iteration=22, to=20, reason="")]
    assert reported([*two_and_one, *healthy(23, clip_fraction=from_20(0.25, 0.03))[22:]]) == []


def test_a_resumed_run_continues_from_its_checkpoint_and_raises_nothing_twice() -> None:
    rows = healthy(40, clip_fraction=from_20(0.25, 0.03))
    again = started(resumed_at=24)
    assert reported([started(), *rows[:30], again, *rows[24:]]) == [(23, "clip_saturation", "warning")]
    history = History()
    for event in [*rows[:30], again, *rows[24:26]]:
        history.take(event, config_of())
    assert [row.iteration for row in history.run.newest(6)] == [21, 22, 23, 24, 25, 26]


def test_an_alarm_of_settings_that_changed_before_a_resume_is_reported_then() -> None:
    events: list[Event] = [started(), *healthy(30)]
    assert alarms(events) == []
    stricter = config_of(ppo=ADAPTIVE["ppo"] | {"kl_target": 0.5}, convergence={"on_kl": "off"})
    assert {alarm.code for alarm in alarms(events, stricter)} == {"kl_high"}, "as it would have been all the time"
    resumed = Monitor(lambda: stricter, events)
    assert resumed.unresolved_alarms == {}
    (alert,) = alerts_of(resumed, [started(resumed_at=30), *healthy(32)[30:]])
    assert (alert.iteration, alert.code) == (31, "kl_high")
    again = Monitor(lambda: stricter, [*events, alert])
    assert again.unresolved_alarms == {"kl_high": alert.level}
    assert alerts_of(again, healthy(31)[30:]) == []


def test_an_alarm_is_unresolved_as_long_as_its_sign_is_there_and_ten_iterations_more() -> None:
    config = config_of()
    monitor = Monitor(lambda: config)
    opened = {}
    for row in healthy(120, clip_fraction=lambda n: 0.5 if 20 <= n < 80 else 0.1):
        alerts_of(monitor, [row])
        opened[row.iteration] = monitor.unresolved_alarms
    open_at = [number for number, alarms in opened.items() if alarms]
    assert {code for alarms in opened.values() for code in alarms} == {"clip_saturation"}
    assert open_at == [*range(open_at[0], open_at[-1] + 1)], "although it was told once"
    assert 20 <= open_at[0] <= 25
    assert abs(open_at[-1] - (79 + AWAY)) <= 5
    config = config_of(health={"alarms": False})
    assert monitor.unresolved_alarms == {}


CLIPPED = {"clip_fraction": from_20(0.25, 0.03)}
SPIKE = {"ratio_mean": in_40(11.0, 1.0)}
SURE = {"entropy": from_20(0.34, 3.4)}


@pytest.mark.parametrize(
    ("changes", "tables", "fixes"),
    [
        (CLIPPED, {"ppo": {"epochs": 4}, "optim": {"policy_lr": 3e-4}}, {"epochs": 2, "policy_lr": 1.5e-4}),
        (CLIPPED, {"ppo": {"epochs": 1}, "optim": {"policy_lr": 0.0}}, {}),  # at their limits
        # From the controller's current value, or from the default if it is 0
        ({"kl": from_20(19.0, 6.0), "kl_coef": lambda n: 0.3}, ADAPTIVE, {"kl_coef": 0.6}),
        ({"kl": from_20(80.0, 2.0), "kl_coef": lambda n: 0.0, **FLAT}, {"ppo": {"kl_coef": 0.0}}, {"kl_coef": 0.05}),
        (SPIKE, {"ppo": {"clip": 0.06}}, {"clip": 0.03}),
        (SPIKE, {"ppo": {"clip": 0.05}}, {"clip": None}),  # narrow enough
        (SURE, {"ppo": {"entropy_coef": 0.0}}, {"entropy_coef": 0.01}),
        (SURE, {"ppo": {"entropy_coef": 0.02}}, {"entropy_coef": 0.04}),
    ],
)
def test_fixes_are_computed_from_the_configuration(
    changes: dict[str, Any], tables: dict[str, Any], fixes: dict[str, Any]
) -> None:
    alarm = one(healthy(40, **changes), config_of(**tables))
    found = {fix.key.partition(".")[2]: fix.value for fix in alarm.fixes if fix.action == "set"}
    assert {name: found.get(name) for name in fixes} == fixes
    assert found if fixes else not alarm.fixes
    for fix in alarm.fixes:
        if fix.key == "ppo.epochs" and fix.value == 2:
            assert fix.label == "lower epochs to 2"


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
    for kind in ("head", "adapter"):
        alarm = one(rows, config_of(optim={"value_lr": 1e-4}, model={"value_model": kind}))
        assert [fix.value for fix in alarm.fixes if fix.key == "optim.value_lr"] == pytest.approx(rates)
        assert "Begin a new run with model.value_model = 'fitted'" in alarm.advice.partition("value_lr")[0]
    fitted = one(rows)
    assert [fix.action for fix in fitted.fixes] == ["pause"], "it takes no steps"
    assert "value_lr" not in f"{fitted.advice} {fitted.evidence}"


@pytest.mark.parametrize(
    ("spread", "noise", "level"),
    [
        (lambda n: 0.4, 0.18, "error"),
        (from_20(0.25, 0.4), 0.08, "warning"),  # -1.28 in each of these batches
        (lambda n: 0.4 if n % 2 else 0.02, 0.01, ""),  # -25 in every second one
        (from_20(0.02, 0.4), 0.01, ""),
    ],
)
def test_returns_that_hardly_vary_are_no_sign_of_a_bad_critic(
    spread: Callable[[int], float], noise: float, level: str
) -> None:
    """`noise`: variance of values that say nothing of the returns."""
    rows = healthy(40, score_std=spread, explained_variance=lambda n: -noise / spread(n) ** 2 if n > 20 else 0.2)
    found = [(at, level) for at, code, level in reported(rows) if code == "critic_lost"]
    assert found == ([(30, level)] if level else [])


def alarms_of_run(folder: Path, *settings: str) -> list[tuple[int, str]]:
    """Return the alarms in the journal of a run, by iteration and code."""
    record(tiny_config(folder, "run.name=a", "eval.every=0", "run.save_samples=false", *settings))
    events = read_journal(folder / "runs/a/events.jsonl").events
    return [(event.iteration, event.code) for event in events if isinstance(event, Alarm)]


def test_a_learning_rate_of_0_is_seen_after_five_iterations(tmp_path: Path) -> None:
    found = alarms_of_run(tmp_path, "optim.policy_lr=0.0", "ppo.iterations=6")
    assert found == [(5, "not_training")]


def test_a_constant_reward_is_seen_after_three_iterations(tmp_path: Path) -> None:
    tiny_config(tmp_path)
    source = f'reward.sources=["{tmp_path}/rewards.py:constant"]'
    assert alarms_of_run(tmp_path, source, "ppo.kl_coef=0.0", "ppo.iterations=4") == [(3, "no_signal")]
    [listed] = list_runs(tmp_path / "runs")
    assert (listed.state, [*listed.alarms]) == ("done", ["no_signal"])
    end = read_journal(listed.folder.events).events[-1]
    assert isinstance(end, RunEnded)
    assert end.alarms == listed.alarms


@pytest.mark.parametrize("seed", [0, 1])
def test_a_run_that_learns_raises_nothing(tmp_path: Path, seed: int) -> None:
    sizes = ("ppo.iterations=12", "rollout.batch_size=16", "optim.policy_lr=0.002", f"run.seed={seed}")
    assert alarms_of_run(tmp_path, *sizes) == []
