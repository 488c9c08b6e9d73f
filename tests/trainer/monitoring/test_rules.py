"""Cases that each health rule leaves alone, and the causes that it names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from health_helper import ADAPTIVE, LONGER, alarms, config_of, from_20, healthy, in_40, one, ranks, reported
from scripted_run import started

from trainer.events import (
    Alert,
    SettingChanged,
)


@pytest.mark.parametrize(
    "change",
    [
        {"optim": {"schedule": "linear"}},
        {"reward": {"normalize": "batch"}},
        {"ppo": {"estimator": "reinforce"}},
        ADAPTIVE,
    ],
)
def test_other_settings_of_a_healthy_run_raise_nothing(change: dict[str, Any]) -> None:
    assert reported(healthy(100), config_of(**change)) == []


def test_a_critic_is_given_time_to_begin() -> None:
    assert reported(healthy(40, explained_variance=lambda n: -0.5 if n <= 19 else 0.1)) == []
    warm = config_of(ppo={"critic_warmup": 20})
    assert reported(healthy(40, explained_variance=lambda n: -0.5 if n <= 29 else 0.1), warm) == []


def test_nine_of_ten_iterations_below_0_are_not_a_lost_critic() -> None:
    assert reported(healthy(100, explained_variance=lambda n: 0.01 if n % 10 == 0 else -0.5)) == []


def test_a_policy_waiting_for_its_critic_is_not_reported_as_not_training() -> None:
    rows = healthy(40, kl=lambda n: 0.0 if n <= 20 else 2.0)
    assert reported(rows) == [(5, "not_training", "error")]
    assert reported(rows, config_of(ppo={"critic_warmup": 19})) == []


def test_a_solved_task_is_not_reported_as_lacking_signal() -> None:
    solved: dict[str, Callable[[int], Any]] = {
        "score_min": from_20(0.9, -0.7),
        "score_max": lambda n: 0.9,
        "score_mean": from_20(0.9, 0.3),
        "advantage_std": from_20(0.0, 0.3),
    }
    assert reported(healthy(40, **solved)) == []
    assert {code for _, code, _ in reported(healthy(40, **solved | {"score_max": from_20(0.9, 1.0)}))} == {"no_signal"}


def test_a_task_whose_responses_are_always_cut_raises_no_truncation_alarm() -> None:
    assert reported(healthy(40, truncated=lambda n: 1.0)) == []
    assert reported(healthy(40, truncated=from_20(0.6, 0.5))) == []
    assert reported(healthy(40, truncated=from_20(1.0, 0.0)), config_of(rollout={"ignore_stop": True})) == []


def test_more_sequences_make_a_smaller_rise_in_truncation_significant() -> None:
    rows = healthy(40, truncated=from_20(0.2, 0.1))
    assert reported(rows) == []
    assert reported(rows, config_of(rollout={"batch_size": 96})) == [(25, "truncation", "warning")]


def test_a_requested_length_is_not_reported_as_exploitation() -> None:
    rows = healthy(40, **LONGER, length_correlation=lambda n: 0.9, parts=lambda n: {})
    assert one(rows).code == "length_exploitation"
    assert reported(rows, config_of(reward={"sources": [{"kind": "length", "target": 40}]})) == []


def test_a_model_that_repeated_itself_from_the_start_raises_nothing() -> None:
    assert reported(healthy(40, repetition=from_20(0.5, 0.4))) == []


def test_a_small_gradient_that_grows_is_not_a_spike_unless_it_is_clipped() -> None:
    rows = healthy(40, grad_norm_max=in_40(0.9, 0.05))
    assert reported(rows) == []
    assert one(rows, config_of(optim={"max_grad_norm": 0.5})).code == "gradient_spike"


def test_changing_the_reward_restarts_the_history_of_scores_and_gradients() -> None:
    rows = healthy(40, grad_norm_max=from_20(80.0, 4.0), kl=lambda n: 4.0, score_mean=from_20(-5.0, 0.3))
    assert {code for _, code, _ in reported(rows)} == {"gradient_spike", "kl_high"}
    other = SettingChanged(iteration=21, key="reward.sources", old=["lexicon"], value=["a.py:f"])
    assert reported([*rows[:20], other, *rows[20:]]) == []


def test_changing_the_temperature_restarts_the_history_of_entropy() -> None:
    rows = healthy(40, entropy=from_20(0.34, 3.4))
    cooler = SettingChanged(iteration=21, key="rollout.temperature", old=1.0, value=0.3)
    assert reported([*rows[:20], cooler, *rows[20:]]) == []


def test_speeds_are_compared_only_for_the_same_work() -> None:
    slower = from_20(12.0, 25.0)
    assert reported(healthy(40, tokens_per_second=slower, response_length=from_20(16.0, 32.0))) == []
    assert reported(healthy(40, tokens_per_second=slower, epochs_done=from_20(4.0, 2.0))) == []
    epochs = SettingChanged(iteration=21, key="ppo.epochs", old=2, value=4)
    rows = healthy(40, tokens_per_second=slower)
    assert reported([*rows[:20], epochs, *rows[20:]]) == []
    assert reported([started(), *rows[:20], started(resumed_at=20), *rows[20:]]) == []  # on another machine


def test_a_slow_moment_or_a_short_run_is_not_a_slowdown() -> None:
    assert reported(healthy(60, tokens_per_second=lambda n: 10.0 if n % 10 < 6 else 25.0)) == []
    assert reported(healthy(40, tokens_per_second=from_20(12.0, 25.0), seconds=lambda n: {"generate": 11.9})) == []


def test_a_policy_that_starts_after_its_critic_may_be_slower_without_an_alarm() -> None:
    rows = healthy(40, tokens_per_second=from_20(12.0, 25.0))
    assert reported(rows, config_of(ppo={"critic_warmup": 20, "iterations": 40})) == []
    assert reported(rows, config_of(ppo={"critic_warmup": 10, "iterations": 40})) == [(28, "throughput", "warning")]


def test_a_slow_run_whose_memory_hardly_grew_has_another_cause() -> None:
    alarm = one(healthy(40, tokens_per_second=from_20(12.0, 25.0), memory_bytes=from_20(1.1 * 2**30, 2**30)))
    assert "memory" not in alarm.message
    assert "other programs" in alarm.advice


def test_a_slow_run_names_the_phase_and_the_memory_that_grew() -> None:
    alarm = one(
        healthy(
            40,
            tokens_per_second=from_20(12.0, 25.0),
            seconds=from_20({"generate": 9.0, "update": 12.0}, {"generate": 9.0, "update": 4.0}),
            memory_bytes=from_20(3 * 2**30, 2**30),
        )
    )
    assert "update takes 3 times" in alarm.message
    assert "1024 to 2662 MiB" in alarm.message  # eight of the ten iterations have the new 3072


def test_a_rank_that_the_others_wait_for_is_named_with_the_time_that_they_lose() -> None:
    alarm = one(healthy(40, ranks=from_20(ranks(9.0, 1.0, 7.0), ranks(3.0, 3.0, 3.0))))
    assert (alarm.iteration, alarm.code, alarm.level) == (30, "straggler", "warning")
    assert "rank 1 (b) is slower than the other ranks: they wait 6 s of each iteration (20 s)" in alarm.message
    assert alarm.evidence["seconds_lost"] == 6.0
    assert "On that host" in alarm.advice


@pytest.mark.parametrize(
    "of_each",
    [
        lambda n: [],  # one rank
        lambda n: ranks(9.0, 9.0, 9.0),  # all wait for the network
        lambda n: ranks(4.9, 1.0, 12.0),  # two slow ones, one of which waits a fifth of the time for the other
        lambda n: ranks(*((9.0, 1.0) if n % 9 else (1.0, 9.0))),  # another one each time, as with random lengths
        lambda n: ranks(0.9, 0.1, seconds=1.0),  # too short to matter
        lambda n: ranks(9.0, 1.0) if n % 9 else ranks(9.0, 1.0, 9.0),  # not one run
    ],
)
def test_no_rank_is_a_straggler(of_each: Callable[[int], Any]) -> None:
    assert not alarms(healthy(40, ranks=of_each))


def test_a_nan_step_is_reported_at_once_because_the_run_may_end_with_it() -> None:
    lost = Alert(iteration=6, level="warning", code="step_skipped", message="")
    alarm = one([*healthy(5), lost, replace(lost), replace(lost)])
    assert (alarm.iteration, alarm.code, alarm.level) == (6, "step_nan", "error")
    assert alarm.evidence["lost_steps"] == 1


@pytest.mark.parametrize(
    ("tables", "mismatch", "cause", "keys"),
    [
        ({"rollout": {"top_p": 0.9}}, 1e-5, "top_p", ["rollout.top_p", ""]),
        ({"rollout": {"top_k": 20}}, 1e-5, "top_k", ["rollout.top_k", ""]),
        ({}, 0.08, "0.08 nats a token", [""]),
        ({}, 1e-5, "masks", [""]),
    ],
)
def test_negative_kl_names_its_cause(tables: dict[str, Any], mismatch: float, cause: str, keys: list[str]) -> None:
    alarm = one(healthy(40, kl=from_20(-0.5, 3.0), sampler_mismatch=lambda n: mismatch), config_of(**tables))
    assert cause in alarm.message
    assert [fix.key for fix in alarm.fixes] == keys


@pytest.mark.parametrize("name", ["truncated", "repetition"])
def test_a_run_too_short_for_a_beginning_and_an_end_is_not_judged(name: str) -> None:
    def changed(count: int) -> list[str]:
        return [code for _, code, _ in reported(healthy(count, **{name: lambda n: 1.0 if n > 5 else 0.0}))]

    assert changed(9) == []
    assert changed(10) == ["truncation" if name == "truncated" else name]
