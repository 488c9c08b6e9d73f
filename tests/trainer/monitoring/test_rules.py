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


def solved(**changes: Callable[[int], Any]) -> dict[str, Callable[[int], Any]]:
    """Return the numbers of a run in which every response has the best score, from 21 on."""
    return {
        "score_min": from_20(0.9, -0.7),
        "score_max": lambda n: 0.9,
        "score_mean": from_20(0.9, 0.3),
        "advantage_std": from_20(0.0, 0.3),
        **changes,
    }


SLOWER = {"tokens_per_second": from_20(12.0, 25.0)}
LATE = {"kl": lambda n: 0.0 if n <= 20 else 2.0}
REQUESTED = {**LONGER, "length_correlation": lambda n: 0.9, "parts": lambda n: {}}
CUT = {"truncated": from_20(0.2, 0.1)}
SMALL_GRADIENT = {"grad_norm_max": in_40(0.9, 0.05)}

QUIET: dict[str, tuple[dict[str, Callable[[int], Any]], dict[str, Any]]] = {
    "a linear schedule": ({}, {"optim": {"schedule": "linear"}}),
    "normalised scores": ({}, {"reward": {"normalize": "batch"}}),
    "no critic": ({}, {"ppo": {"iterations": 100, "estimator": "reinforce"}}),
    "a controller": ({}, ADAPTIVE),
    "a critic that begins": ({"explained_variance": lambda n: -0.5 if n <= 19 else 0.1}, {}),
    "a critic that warms up": (
        {"explained_variance": lambda n: -0.5 if n <= 29 else 0.1},
        {"ppo": {"iterations": 100, "critic_warmup": 20}},
    ),
    "nine of ten below 0": ({"explained_variance": lambda n: 0.01 if n % 10 == 0 else -0.5}, {}),
    "a policy that waits for its critic": (LATE, {"ppo": {"iterations": 100, "critic_warmup": 19}}),
    "a solved task": (solved(), {}),
    "responses that are always cut": ({"truncated": lambda n: 1.0}, {}),
    "a few more that are cut": ({"truncated": from_20(0.6, 0.5)}, {}),
    "few that are cut": (CUT, {}),
    "no stops": ({"truncated": from_20(1.0, 0.0)}, {"rollout": {"ignore_stop": True}}),
    "a length that is asked for": (REQUESTED, {"reward": {"sources": [{"kind": "length", "target": 40}]}}),
    "repetition from the start": ({"repetition": from_20(0.5, 0.4)}, {}),
    "a small gradient": (SMALL_GRADIENT, {}),
    "shorter texts": ({**SLOWER, "response_length": from_20(16.0, 32.0)}, {}),
    "more passes": ({**SLOWER, "epochs_done": from_20(4.0, 2.0)}, {}),
    "slow moments": ({"tokens_per_second": lambda n: 10.0 if n % 10 < 6 else 25.0}, {}),
    "a short run": ({**SLOWER, "seconds": lambda n: {"generate": 11.9}}, {}),
    "a policy that starts later": (SLOWER, {"ppo": {"critic_warmup": 20, "iterations": 40}}),
}


@pytest.mark.parametrize("name", QUIET)
def test_a_healthy_run_raises_nothing(name: str) -> None:
    changes, tables = QUIET[name]
    assert reported(healthy(40, **changes), config_of(**tables)) == []


@pytest.mark.parametrize(
    ("changes", "tables", "raised"),
    [
        (LATE, {}, (5, "not_training", "error")),
        (CUT, {"rollout": {"batch_size": 96}}, (25, "truncation", "warning")),  # more sequences: less by chance
        (REQUESTED, {}, (24, "length_exploitation", "warning")),
        (SMALL_GRADIENT, {"optim": {"max_grad_norm": 0.5}}, (40, "gradient_spike", "warning")),
        (SLOWER, {"ppo": {"critic_warmup": 10, "iterations": 40}}, (28, "throughput", "warning")),
        (solved(score_max=from_20(0.9, 1.0)), {}, (23, "no_signal", "warning")),
    ],
)
def test_a_run_that_is_nearly_one_of_these_raises_its_alarm(
    changes: dict[str, Callable[[int], Any]], tables: dict[str, Any], raised: tuple[int, str, str]
) -> None:
    assert reported(healthy(40, **changes), config_of(**tables))[0] == raised


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        (
            "reward.sources",
            {"grad_norm_max": from_20(80.0, 4.0), "kl": lambda n: 4.0, "score_mean": from_20(-5.0, 0.3)},
        ),
        ("rollout.temperature", {"entropy": from_20(0.34, 3.4)}),
        ("ppo.epochs", SLOWER),
    ],
)
def test_a_change_of_a_setting_restarts_the_history_that_it_concerns(
    key: str, changes: dict[str, Callable[[int], Any]]
) -> None:
    rows = healthy(40, **changes)
    assert reported(rows)
    change = SettingChanged(iteration=21, key=key, old=None, value=None)
    assert reported([*rows[:20], change, *rows[20:]]) == []


def test_speeds_of_another_machine_are_not_compared() -> None:
    rows = healthy(40, **SLOWER)
    assert reported([started(), *rows[:20], started(resumed_at=20), *rows[20:]]) == []


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
