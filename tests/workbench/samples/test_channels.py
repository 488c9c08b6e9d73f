"""Channels: the numbers of a token, from its sample's columns, and how they are written."""

from __future__ import annotations

import dataclasses
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_samples import token_sample

from trainer.runs.samples import sample_schema
from workbench.run.samples import TokenSample
from workbench.samples.channels import CHANNELS

FLOATS = st.floats(allow_nan=False, allow_infinity=False)


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


@pytest.mark.parametrize("name", CHANNELS)
def test_a_channel_without_its_columns_has_no_values(name: str) -> None:
    assert list(CHANNELS[name].values(sample(numbers={}, ratios=[]))) == []
    assert list(CHANNELS[name].values(sample(ratios=[[]] * 5, numbers={}))) == []


def test_the_columns_of_a_channel_are_those_of_a_samples_file_that_it_needs() -> None:
    names = set(sample_schema().names)
    whole = token_sample(length=3)
    for channel in CHANNELS.values():
        assert names.issuperset(channel.columns)
        kept = {name: values for name, values in whole.numbers.items() if name in channel.columns}
        ratios = whole.ratios if "ratios" in channel.columns else []
        assert len(channel.values(dataclasses.replace(whole, numbers=kept, ratios=ratios))) == 3


def test_a_ratio_that_has_no_logarithm_is_told_apart() -> None:
    values = CHANNELS["ratio"].values(sample(ratios=[[1.0, 2.0], [0.0], [-1.0], [], [math.nan]]))
    assert values[:2] == [pytest.approx(math.log(2)), -math.inf]
    assert all(math.isnan(value) for value in values[2:])


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("kl", 1.204, "+1.20 nats"),
        ("kl", -0.001, "0.00 nats"),
        ("advantage", -1.5, "-1.50"),
        ("reward", 0.0456, "+0.046"),
        ("ratio", math.log(1.5), "1.50"),
        ("ratio", -2000.0, "0.00"),
        ("ratio", 2000.0, "inf"),
        ("logprob", 2.0, "-2.00 nats"),
        ("logprob", 0.0, "0.00 nats"),
        ("logprob", math.inf, "-inf"),
        ("entropy", 0.126, "0.13 nats"),
        ("entropy", math.nan, "NaN"),
        ("value", -math.inf, "-inf"),
        ("value", math.inf, "+inf"),
        ("value", 1e308, "+1.0e+308"),
    ],
)
def test_a_number_is_written_with_fixed_decimals_and_its_unit(name: str, value: float, text: str) -> None:
    assert CHANNELS[name].format(value) == text


@given(value=FLOATS, name=st.sampled_from(list(CHANNELS)))
def test_a_bound_is_rounded_away_from_the_value(value: float, name: str) -> None:
    channel = CHANNELS[name]
    shown = channel.shown(value)
    low, high = (Decimal(channel.number(value, bound=bound)) for bound in ("low", "high"))
    if name == "logprob":
        low, high = high, low
    assert low <= Decimal(shown) <= high
    if abs(shown) < 1e5:
        assert high - low <= Decimal(1).scaleb(-channel.decimals)
