"""Thresholds of the health rules: a number just short of one is no sign, one just past it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from health_helper import ADAPTIVE, FLAT, config_of, from_20, healthy, in_40, reported

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
    Edge("sampling_bias", later("surprise", 3.4, **SURE), 3.449, 3.451, "warning", LARGE),
    Edge("sampling_bias", later("surprise", 3.4, **SURE), 3.351, 3.349, "warning", LARGE),
    Edge("sampling_bias", later("surprise", 3.4, **SURE), 3.649, 3.651, "error", LARGE),
    Edge(
        "sampling_bias",
        later("surprise_error", 1.0, entropy=lambda n: 3.4, surprise=lambda n: 3.5),
        0.0633,
        0.0632,
        "warning",
        LARGE,
    ),
    Edge("entropy_collapse", later("entropy", 3.0), 0.61, 0.59),
    Edge("entropy_collapse", later("entropy", 3.0), 0.151, 0.149, "error"),
    Edge("clip_saturation", later("clip_fraction", 0.03), 0.19, 0.21),
    Edge("clip_saturation", later("clip_fraction", 0.03), 0.39, 0.41, "error"),
    Edge("ratio_spike", once("ratio_mean", 1.0), 9.9, 10.1),
    Edge("ratio_spike", once("log_ratio_max", 2.0), 19.9, 20.1),
    Edge("no_signal", later("advantage_std", 0.3), 1.01e-6, 0.99e-6),
    Edge("critic_lost", later("explained_variance", 0.2), -0.24, -0.26),
    Edge("critic_lost", later("explained_variance", 0.2), -0.99, -1.01, "error"),
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
