"""The alarm on biased sampling: mean surprise and mean entropy agree within five standard errors, and by precision."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from health_helper import config_of, healthy, reported
from scripted_run import started

from trainer.events import Event

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


def test_iterations_of_an_earlier_version_without_surprise_do_not_hide_a_bias() -> None:
    rows = biased(lambda n: 0.1 if n > 5 else math.nan, dtype="float32")
    assert found(rows, **MANY) == [(6, "warning")]


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
