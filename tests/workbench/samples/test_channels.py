"""Channels: a token's numbers as written, on robust and monotone scales, and the outliers among them."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_samples import token_sample

from trainer.runs.samples import sample_schema
from workbench.run.sample_table import TokenSample
from workbench.samples.channels import CHANNELS, channel_scale, outliers, read_channel

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
ANY = st.floats(allow_subnormal=True)
VALUES = st.lists(ANY | st.sampled_from([1e308, -1e308, 0.0, -0.0, math.inf, -math.inf, math.nan]), max_size=40)


def sample(**changes: Any) -> TokenSample:
    return dataclasses.replace(token_sample(length=5), **changes)


def test_each_channel_is_a_column_or_follows_from_some() -> None:
    shown = token_sample(length=30)
    numbers = shown.numbers
    pairs = zip(numbers["logprobs"], numbers["ref_logprobs"], strict=True)
    wanted = {
        "kl": [mine - theirs for mine, theirs in pairs],
        "advantage": numbers["advantages"],
        "value": numbers["values"],
        "reward": numbers["rewards"],
        "return": numbers["returns"],
        "td_error": numbers["td_errors"],
        "ratio": [math.log(passes[-1]) for passes in shown.ratios],
        "logprob": [-value for value in numbers["logprobs"]],
        "entropy": numbers["entropy"],
    }
    assert {name: list(channel.values(shown)) for name, channel in CHANNELS.items()} == wanted
    assert [channel.name for channel in CHANNELS.values()] == list(CHANNELS)


def test_the_columns_of_a_channel_are_those_of_a_samples_file_that_it_needs() -> None:
    names, whole = set(sample_schema().names), token_sample(length=3)
    for channel in CHANNELS.values():
        assert names.issuperset(channel.columns)
        kept = {name: values for name, values in whole.numbers.items() if name in channel.columns}
        ratios = whole.ratios if "ratios" in channel.columns else []
        assert len(channel.values(dataclasses.replace(whole, numbers=kept, ratios=ratios))) == 3
        for ratios in ([], [[]] * 3):
            assert list(channel.values(dataclasses.replace(whole, numbers={}, ratios=ratios))) == []


def test_a_ratio_without_a_logarithm_is_distinguished() -> None:
    values = CHANNELS["ratio"].values(sample(ratios=[[1.0, 2.0], [0.0], [-1.0], [], [math.nan]]))
    assert values[:2] == [pytest.approx(math.log(2)), -math.inf]
    assert all(math.isnan(value) for value in values[2:])


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("kl", 1.204, "+1.20"),
        ("kl", -0.001, "0.00"),
        ("advantage", -1.5, "-1.50"),
        ("reward", 0.0456, "+0.046"),
        ("ratio", math.log(1.5), "1.50"),
        ("ratio", -2000.0, "0.00"),
        ("ratio", 2000.0, "inf"),
        ("logprob", 2.0, "-2.00"),
        ("logprob", 0.0, "0.00"),
        ("logprob", math.inf, "-inf"),
        ("entropy", 0.126, "0.13"),
        ("entropy", math.nan, "NaN"),
        ("value", -math.inf, "-inf"),
        ("value", math.inf, "+inf"),
        ("value", 1e308, "+1.0e+308"),
    ],
)
def test_a_number_is_written_with_fixed_decimals(name: str, value: float, text: str) -> None:
    assert CHANNELS[name].number(value) == text


# Scales


@given(values=VALUES, more=VALUES, diverging=st.booleans())
def test_a_position_is_between_0_and_1_and_never_falls(values: list[float], more: list[float], diverging: bool) -> None:
    scale = channel_scale(values, diverging)
    ordered = sorted(value for value in values + more if not math.isnan(value))
    positions = [scale.position(value) for value in ordered]
    assert positions == sorted(positions)
    assert all(0 <= position <= 1 for position in positions)
    assert scale.position(0.0) == (0.5 if diverging else 0.0)


@given(values=VALUES, diverging=st.booleans())
def test_a_scale_knows_the_extremes_and_what_is_missing(values: list[float], diverging: bool) -> None:
    scale = channel_scale(values, diverging)
    finite = [value for value in values if math.isfinite(value)]
    assert (scale.least, scale.greatest) == (min(finite), max(finite)) if finite else math.isnan(scale.least)
    assert scale.missing == sum(value != value for value in values)
    assert scale.high > 0
    assert scale.low == (-scale.high if diverging else 0)
    assert sum(abs(value) <= scale.high for value in finite) >= 0.98 * len(finite)


def test_infinite_values_are_at_an_end_and_nan_is_nowhere() -> None:
    scale = channel_scale([-1.0, 2.0], True)
    assert (scale.position(-math.inf), scale.position(math.inf)) == (0, 1)
    assert math.isnan(scale.position(math.nan))
    assert scale.position(1.0) == pytest.approx(0.75)


def test_two_values_in_a_hundred_do_not_stretch_a_scale() -> None:
    values = [place / 98 for place in range(1, 99)]
    assert channel_scale([*values, 50.0, -60.0], True).high == 1.0
    assert channel_scale([*values, 50.0, -60.0, 70.0], True).high > 1.0


@pytest.mark.parametrize("values", [[], [math.nan] * 3, [0.0] * 5, [1e-7, -2e-6, 3e-7], [math.inf]])
def test_a_channel_with_tiny_values_is_not_magnified(values: list[float]) -> None:
    scale = channel_scale(values, True)
    assert (scale.low, scale.high) == (-0.01, 0.01)
    assert all(abs(scale.position(value) - 0.5) < 1e-3 for value in values if math.isfinite(value))


def test_a_channel_is_read_on_its_own_scale_or_a_given_one() -> None:
    sample, channel = token_sample(length=20), CHANNELS["advantage"]
    own = read_channel(sample, channel)
    assert own.scale == channel_scale(sample.numbers["advantages"], True)
    shared = channel_scale([-100.0, 100.0], True)
    read = read_channel(sample, channel, shared)
    assert read.scale is shared
    assert [round(position, 9) for position in read.positions] == [round(0.5 + v / 200, 9) for v in own.numbers]


@given(values=VALUES)
def test_outliers_are_found_among_any_numbers(values: list[float]) -> None:
    found = outliers(values)
    assert found == sorted(set(found))
    assert {place for place, value in enumerate(values) if not math.isfinite(value)} <= set(found)


def test_one_far_value_among_noise_or_among_zeros_is_an_outlier() -> None:
    rng = random.Random(0)
    noise = [rng.gauss(0, 1) for _ in range(50)]
    assert outliers([*noise[:20], 30.0, *noise[20:]]) == [20]
    assert outliers([0.0] * 30 + [0.8]) == [30]
    assert outliers([0.3] * 30) == []
    assert outliers([1e308, -1e308, 1e308, -1e308]) == []
    spread = [-1.0, 0.0, 1.0] * 7  # the median absolute deviation is 1, so z = 0.6745 |value|
    assert outliers([*spread, 3.4 / 0.6745]) == []
    assert outliers([*spread, -3.6 / 0.6745]) == [21]
