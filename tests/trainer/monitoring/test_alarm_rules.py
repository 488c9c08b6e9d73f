"""Thresholds of the health rules, the cases that each leaves alone, and the causes that it names."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from health_helper import ADAPTIVE, FLAT, LONGER, alarms, config_of, from_20, healthy, in_40, one, ranks, reported
from scripted_run import started

from trainer.events import Alert, Evaluation, Event, HumanEvaluation, Iteration, RolledBack, SettingChanged
from trainer.monitoring.history import source_parts


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


def test_a_slow_run_names_the_phase_and_the_memory_that_grew_or_looks_elsewhere() -> None:
    seconds = from_20({"generate": 9.0, "update": 12.0}, {"generate": 9.0, "update": 4.0})
    grown, same = (
        one(healthy(40, **SLOWER, seconds=seconds, memory_bytes=from_20(now * 2**30, 2**30))) for now in (3, 1.1)
    )
    assert "update takes 3 times" in grown.message
    assert "1024 to 2662 MiB" in grown.message  # eight of the ten iterations have the new 3072
    assert "memory" not in same.message
    assert "other programs" in same.advice


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


Changes = dict[str, Callable[[int], Any]]


class Edge(NamedTuple):
    """Number from iteration 21 on, or in the 40th; before that, 0 or a healthy value."""

    code: str
    changes: Callable[[float], Changes]
    below: float
    above: float
    level: str = "warning"
    tables: Mapping[str, dict[str, Any]] = MappingProxyType({})


def later(name: str, before: float, **more: Callable[[int], Any]) -> Callable[[float], Changes]:
    return lambda value: {name: from_20(value, before), **more}


def once(name: str, else_: float) -> Callable[[float], Changes]:
    return lambda value: {name: in_40(value, else_)}


LEVEL_SCORE = {"score_mean": lambda n: 0.3, "score_std": lambda n: 0.4}
LARGE = {"rollout": {"batch_size": 1024}}

SURE = {"entropy": lambda n: 3.4, "surprise_error": lambda n: 0.001}

EDGES = [
    Edge("kl_high", later("kl", 2.0, **LEVEL_SCORE), 11.9, 12.1),  # at 0.05 a nat, 0.6: 1.5 deviations
    Edge("kl_high", later("kl", 2.0, **LEVEL_SCORE), 23.9, 24.1, "error"),
    Edge("kl_high", later("kl", 2.0), 17.9, 18.1, "warning", ADAPTIVE),
    Edge("kl_high", later("kl", 2.0), 47.9, 48.1, "error", ADAPTIVE),
    Edge(  # 32 tokens of half of 3.4 nats are 54.4
        "kl_high", later("kl", 2.0, kl_coef=lambda n: 0.0, entropy=lambda n: 3.4, **FLAT), 54.3, 54.5, "error"
    ),
    Edge("kl_negative", later("kl", 2.0), -0.049, -0.051),
    Edge("sampling_bias", later("sampler_mismatch", 1e-5), 0.0999, 0.1001),
    Edge("sampling_bias", later("surprise", 3.4, **SURE), 3.649, 3.651, "error", LARGE),
    Edge("entropy_collapse", later("entropy", 3.0), 0.61, 0.59),
    Edge("entropy_collapse", later("entropy", 3.0), 0.151, 0.149, "error"),
    Edge("clip_saturation", later("clip_fraction", 0.03), 0.19, 0.21),
    Edge("clip_saturation", later("clip_fraction", 0.03), 0.39, 0.41, "error"),
    Edge("ratio_spike", once("ratio_mean", 1.0), 9.9, 10.1),
    Edge("ratio_spike", once("log_ratio_max", 2.0), 19.9, 20.1),
    Edge("no_signal", later("advantage_std", 0.3), 1.01e-6, 0.99e-6),
    Edge("critic_lost", later("explained_variance", 0.2, **LEVEL_SCORE), -0.24, -0.26),
    Edge("critic_lost", later("explained_variance", 0.2, **LEVEL_SCORE), -0.99, -1.01, "error"),
    Edge("critic_pull", once("critic_share", 0.1), 0.49, 0.51),
    Edge("gradient_spike", once("grad_norm_max", 4.0), 39.9, 40.1),
    Edge("gradient_spike", once("grad_norm_max", 4.0), 399.0, 401.0, "error"),
    Edge(
        "length_exploitation",
        later("length_correlation", 0.0, response_length=from_20(30.0, 20.0), truncated=lambda n: 0.0),
        0.74,
        0.76,
    ),
    Edge(
        "length_exploitation",
        later("response_length", 20.0, length_correlation=lambda n: 0.9, truncated=lambda n: 0.0),
        27.9,
        28.1,
    ),
    Edge("truncation", later("truncated", 0.0), 0.149, 0.151, "warning", LARGE),
    Edge("truncation", later("truncated", 0.0), 0.499, 0.501, "error", LARGE),
    Edge("repetition", later("repetition", 0.05), 0.299, 0.301),
    Edge("repetition", later("repetition", 0.2), 0.349, 0.351),
    Edge("repetition", later("repetition", 0.2), 0.599, 0.601, "error"),
    Edge("throughput", later("tokens_per_second", 28.0), 20.1, 19.9),
]


@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: f"{edge.code}-{edge.above:g}")
def test_an_alarm_starts_exactly_at_its_threshold(edge: Edge) -> None:
    def found(value: float) -> list[tuple[str, str]]:
        rows = healthy(40, **edge.changes(value))
        return [(code, level) for _, code, level in reported(rows, config_of(**edge.tables))]

    assert (edge.code, edge.level) not in found(edge.below)
    assert (edge.code, edge.level) in found(edge.above)
    assert {code for code, _ in found(edge.below)} <= ({edge.code} if edge.level == "error" else set())


def spikes(*numbers: int) -> Changes:
    return {name: lambda n: int(n in numbers) for name in ("spiked_steps", "skipped_steps")}


def slow(seconds: float) -> Changes:
    return {"tokens_per_second": from_20(12.0, 25.0), "seconds": lambda n: {"generate": seconds}}


@pytest.mark.parametrize(
    ("code", "changes", "first"),
    [
        ("ratio_spike", spikes(31, 34, 36), {"warning": 31}),
        ("ratio_spike", spikes(32, 34, 36), {"warning": 32, "error": 36}),
        ("no_signal", {"advantage_std": lambda n: 0.0 if 20 < n <= 29 else 0.3}, {"warning": 23}),
        ("no_signal", {"advantage_std": lambda n: 0.0 if 20 < n <= 30 else 0.3}, {"warning": 23, "error": 30}),
        ("clip_saturation", {"clip_fraction": lambda n: 0.3}, {"warning": 8}),
        ("critic_lost", {"explained_variance": lambda n: -0.5}, {"warning": 20}),
        ("gradient_spike", {"grad_norm_max": lambda n: 50.0 if n == 10 else 4.0}, {}),
        ("gradient_spike", {"grad_norm_max": lambda n: 50.0 if n == 11 else 4.0}, {"warning": 11}),
        ("throughput", slow(11.9), {}),
        ("throughput", slow(12.1), {"warning": 28}),
    ],
)
def test_how_often_how_long_and_how_early_a_sign_counts(code: str, changes: Changes, first: dict[str, int]) -> None:
    found = reported(healthy(60, **changes))
    assert {other for _, other, _ in found} <= {code}
    assert {level: at for at, _, level in reversed(found)} == first


@pytest.mark.parametrize(("unknown", "seen"), [(6, []), (5, [(30, "length_exploitation", "warning")])])
def test_five_correlations_of_ten_must_be_known(unknown: int, seen: list[tuple[int, str, str]]) -> None:
    rows = healthy(
        30,
        response_length=lambda n: 40.0 if n > 25 else 20.0,
        truncated=lambda n: 0.0,
        length_correlation=lambda n: -0.9 if n <= 20 else math.nan if n <= 20 + unknown else 0.99,
    )
    assert reported(rows) == seen


MANY = {"rollout": {"batch_size": 512, "max_new_tokens": 512}, "optim": {"buffer_tokens": 2**20}}
OF_MANY = {"response_length": lambda n: 512.0, "entropy": lambda n: 3.4, "surprise_error": lambda n: 0.004}
RARE = 0.001  # probability of the other token of a policy that is sure


def biased(gap: float | Callable[[int], float], *, dtype: str, count: int = 40) -> list[Event]:
    """Return a run of 512 responses of 512 tokens an iteration, whose surprise is `gap` above their entropy."""
    surprise = gap if callable(gap) else lambda n: gap
    rows = healthy(count, **OF_MANY, surprise=lambda n: 3.4 + surprise(n))
    return [started(dtype=dtype), *rows]


def found(events: list[Event], **tables: dict[str, Any]) -> list[tuple[int, str]]:
    return [(at, level) for at, code, level in reported(events, config_of(**tables)) if code == "sampling_bias"]


def test_a_bias_that_one_iteration_of_many_tokens_shows_raises_the_alarm_at_once() -> None:
    assert found(biased(0.045, dtype="float32"), **MANY) == [(1, "warning")]
    assert found(biased(-0.045, dtype="float32"), **MANY) == [(1, "warning")]
    assert found(biased(0.3, dtype="bfloat16"), **MANY) == [(1, "error")]


@pytest.mark.parametrize(("dtype", "least"), [("float32", 0.002), ("bfloat16", 0.05), ("float16", 0.05)])
def test_the_least_bias_is_that_of_the_precision(dtype: str, least: float) -> None:
    sure = {"surprise_error": lambda n: 0.0001, "entropy": lambda n: 3.4, "response_length": lambda n: 512.0}
    for gap, is_found in ((0.99 * least, False), (1.01 * least, True)):
        rows = healthy(40, **sure, surprise=lambda n, gap=gap: 3.4 + gap)
        assert bool(found([started(dtype=dtype), *rows], **MANY)) == is_found


@pytest.mark.parametrize(("gap", "is_found"), [(0.019, False), (0.021, True)])
def test_in_float32_a_bias_exceeds_the_rounding_that_is_measured(gap: float, is_found: bool) -> None:
    rows = healthy(40, **OF_MANY, surprise=lambda n: 3.4 + gap, sampler_mismatch=lambda n: 0.02)
    assert bool(found([started(dtype="float32"), *rows], **MANY)) == is_found
    rows = healthy(40, **OF_MANY, surprise=lambda n: 3.4 + 0.06, sampler_mismatch=lambda n: 0.09)
    assert found([started(dtype="float32"), *rows], **MANY) == [(1, "warning")], "as in any other type"


def test_a_small_bias_is_found_by_the_tokens_of_all_iterations() -> None:
    assert found(biased(0.004, dtype="float32"), **MANY) == [(26, "warning")], "5 x 0.004 / sqrt(26) is below 0.004"


def test_a_bias_that_begins_late_is_found_by_the_newest_iterations() -> None:
    late = biased(lambda n: 0.02 * (n > 100), dtype="float32", count=140)
    assert found(late, **MANY) == [(104, "warning")], "4 x 0.02 / 10 is above 5 x 0.004 / sqrt(10)"


def test_a_policy_that_is_sure_of_its_tokens_raises_nothing_though_rare_ones_are_missing() -> None:
    entropy = -RARE * math.log(RARE) - (1 - RARE) * math.log(1 - RARE)
    for seed in range(20):
        draw = random.Random(seed)
        drawn = [sum(draw.random() < RARE for _ in range(256)) for _ in range(60)]
        rare, other = -math.log(RARE) - entropy, -math.log(1 - RARE) - entropy
        totals = [count * rare + (256 - count) * other for count in drawn]
        squares = [count * rare**2 + (256 - count) * other**2 for count in drawn]
        rows = healthy(
            60,
            entropy=lambda n: entropy,
            surprise=lambda n, totals=totals: entropy + totals[n - 1] / 256,
            surprise_error=lambda n, squares=squares: math.sqrt(squares[n - 1]) / 256,
        )
        assert found([started(dtype="float32"), *rows]) == []


TRUTH = {"reward": {"sources": ["a.py:proxy", {"kind": "python", "path": "a.py:truth", "weight": 0.0}]}}


def parts(truth: Callable[[int], float], proxy: Callable[[int], float]) -> Callable[[int], dict[str, float]]:
    def at(number: int) -> dict[str, float]:
        noise = 0.02 * (-1) ** number
        return {"a.py:proxy": proxy(number) + noise, "a.py:proxy.detail": 9.0, "a.py:truth": truth(number) + noise}

    return at


def rising(number: int) -> float:
    return 0.2 + number / 100


def falling(number: int) -> float:
    return 0.8 - number / 100


def test_a_watched_source_that_falls_while_the_trained_one_rises_raises_an_alarm() -> None:
    config = config_of(**TRUTH)
    alarm = one(healthy(40, parts=parts(falling, rising)), config)
    assert (alarm.iteration, alarm.code, alarm.level) == (20, "reward_hacking", "error")
    assert alarm.evidence["a.py:truth"] < alarm.evidence["early_a.py:truth"]
    assert alarm.evidence["score"] > alarm.evidence["early_score"]
    assert reported(healthy(40, parts=parts(rising, rising)), config) == []
    assert reported(healthy(40, parts=parts(falling, falling)), config) == []
    assert reported(healthy(40, parts=parts(falling, lambda n: 0.5)), config) == []


def test_a_watched_source_must_fall_by_a_tenth_and_significantly() -> None:
    """In 40 iterations, of which the first and the last ten are compared, n / 500 falls by 0.06."""
    config = config_of(**TRUTH)
    assert reported(healthy(40, parts=parts(lambda n: 0.7 - n / 500, rising)), config) == []
    assert one(healthy(40, parts=parts(lambda n: 0.5 - n / 500, rising)), config).code == "reward_hacking"
    noise = [0.5, -0.5, 0.3, -0.4, 0.2]
    assert reported(healthy(40, parts=parts(lambda n: 0.5 - n / 100 + noise[n % 5], rising)), config) == []


def evaluated(rows: list[Iteration], held_out: Callable[[int], float]) -> list[Event]:
    """Return `rows` with an evaluation of 100 prompts after every fifth, whose scores deviate by 0.5."""
    events: list[Event] = []
    for row in rows:
        events.append(row)
        if row.iteration % 5 == 0:
            events.append(
                Evaluation(
                    iteration=row.iteration,
                    prompts=100,
                    score_mean=held_out(row.iteration),
                    score_std=0.5,
                    kl=1.0,
                    response_length=30.0,
                    truncated=0.0,
                    seconds=1.0,
                )
            )
    return events


def test_held_out_scores_that_fall_while_training_rises_raise_an_alarm() -> None:
    rows = healthy(60, score_mean=rising)
    peak = evaluated(rows, lambda n: 0.5 if n < 30 else 0.2)
    assert [(code, level) for _, code, level in reported(peak)] == [("reward_hacking", "error")]
    assert reported(peak)[0][0] == 35  # the second in a row
    assert reported(evaluated(rows, lambda n: 0.5 if n != 30 else 0.2)) == []
    assert reported(evaluated(rows, lambda n: 0.5 if n < 30 else 0.4)) == []
    back = RolledBack(iteration=30, to=20, reason="")  # and the fall at 30 with it
    at_30 = next(place for place, event in enumerate(peak) if isinstance(event, Evaluation) and event.iteration == 30)
    again = [event for event in peak[at_30 + 1 :] if event.iteration < 40]
    assert reported([*peak[: at_30 + 1], back, *again]) == []
    fallen = evaluated(healthy(60, score_mean=falling, kl=lambda n: 0.1), lambda n: 0.5 if n < 30 else 0.2)
    assert "reward_hacking" not in [code for _, code, _ in reported(fallen)]


def judged(iteration: int, comparisons: int, rate: float) -> HumanEvaluation:
    wins, margin = round(rate * comparisons), 0.1
    return HumanEvaluation(
        iteration=iteration,
        comparisons=comparisons,
        wins=wins,
        ties=0,
        losses=comparisons - wins,
        win_rate=rate,
        low=rate - margin,
        high=rate + margin,
        labellers=1,
    )


def test_people_preferring_the_reference_to_a_higher_scoring_policy_raise_an_alarm() -> None:
    rows = healthy(40, parts=lambda n: {"lexicon": rising(n) + 0.02 * (-1) ** n})
    assert one([*rows, judged(40, 30, 0.3)]).code == "reward_hacking"
    assert reported([*rows, judged(40, 30, 0.6)]) == []
    assert reported([*rows, judged(40, 19, 0.3)]) == []
    assert one([*rows, judged(40, 20, 0.3)]).code == "reward_hacking"
    assert one([*rows, judged(20, 30, 0.9), judged(40, 60, 0.65)]).code == "reward_hacking"
    assert reported([*healthy(40, parts=lambda n: {"lexicon": 0.3 + 0.02 * (-1) ** n}), judged(40, 30, 0.3)]) == []


def test_parts_of_the_sources_are_distinguished_from_their_details() -> None:
    names = ["lexicon", "a.py:f", "a.py:f.disagreement", "regex", "regex#2"]
    assert source_parts(names, 4) == ["lexicon", "a.py:f", "regex", "regex#2"]
    assert source_parts(names, 3) == []
