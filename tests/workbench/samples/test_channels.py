"""Channels: a token's numbers as written, on robust scales, in readable colours, and the outliers among them."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from typing import Any

import pytest
from colors import SPECS, XTERM, XTERM_DARK, contrast, delta_e
from hypothesis import given
from hypothesis import strategies as st
from rich.style import Style
from textual.color import Color
from token_samples import token_sample

from trainer.runs.samples import sample_schema
from workbench.kit.glyphs import BARS, block
from workbench.run.sample_table import TokenSample
from workbench.samples.channels import (
    CHANNELS,
    Ladder,
    channel_scale,
    heat_ladder,
    outliers,
    underline_style,
)

MIXED = [name for name, spec in SPECS.items() if not spec.ansi]
ANSI = [name for name, spec in SPECS.items() if spec.ansi]
POSITIONS = [place / 200 for place in range(201)]
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


def test_two_values_in_a_hundred_do_not_stretch_a_scale() -> None:
    values = [place / 98 for place in range(1, 99)]
    assert channel_scale([*values, 50.0, -60.0], True).high == 1.0
    assert channel_scale([*values, 50.0, -60.0, 70.0], True).high > 1.0


@pytest.mark.parametrize("values", [[], [math.nan] * 3, [0.0] * 5, [1e-7, -2e-6, 3e-7], [math.inf]])
def test_a_channel_with_tiny_values_is_not_magnified(values: list[float]) -> None:
    scale = channel_scale(values, True)
    assert (scale.low, scale.high) == (-0.01, 0.01)
    assert all(abs(scale.position(value) - 0.5) < 1e-3 for value in values if math.isfinite(value))


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


# Colours, in every shipped theme, and marks without colour


def ladder(name: str, diverging: bool) -> Ladder:
    theme = SPECS[name]
    return heat_ladder({**theme.to_color_system().generate(), **theme.variables}, diverging=diverging)


def colors(style: Style, *, dark: bool = True) -> tuple[Color, Color]:
    """Return the colours of text and ground, as they reach the eye."""
    found = []
    for color, default in zip((style.color, style.bgcolor), XTERM_DARK if dark else XTERM_DARK[::-1], strict=True):
        assert color is not None
        if color.is_default:
            found.append(Color.parse(default))
        else:
            found.append(Color.parse(XTERM[color.number]) if color.number is not None else Color.from_rich_color(color))
    return found[0], found[1]


def grounds_outwards(found: Ladder, diverging: bool) -> list[list[Color]]:
    """Return the backgrounds from that of zero to each end."""
    grounds = [colors(style)[1] for style in found.steps]
    middle = len(grounds) // 2 if diverging else 0
    return [grounds[middle:], grounds[middle::-1]] if diverging else [grounds]


@pytest.mark.parametrize("diverging", [True, False])
@pytest.mark.parametrize("name", SPECS)
def test_text_can_be_read_on_every_step_and_keeps_its_colour(name: str, diverging: bool) -> None:
    found = ladder(name, diverging)
    least = 3 if SPECS[name].ansi else 4.5
    ratios = [contrast(*colors(style, dark=SPECS[name].dark)) for style in (*found.steps, found.plain)]
    assert min(ratios) >= least
    assert contrast(*colors(found.missing, dark=SPECS[name].dark)) >= 3
    assert found.at(math.nan) == found.at(math.nan, mark=True) == found.missing
    assert found.missing not in (*found.steps, *found.marks)
    if found.plain.color is not None and found.plain.color.triplet is not None:  # mixed colours
        assert {step.color for step in found.steps} == {found.plain.color}


@pytest.mark.parametrize("diverging", [True, False])
@pytest.mark.parametrize("name", MIXED)
def test_values_further_from_zero_stand_out_more(name: str, diverging: bool) -> None:
    for grounds in grounds_outwards(ladder(name, diverging), diverging):
        distances = [delta_e(grounds[0], ground) for ground in grounds]
        steps = [b - a for a, b in itertools.pairwise(distances)]
        assert min(steps) > 1
        assert distances[-1] > 20


@pytest.mark.parametrize("name", MIXED)
def test_opposite_ends_differ_and_zero_is_the_plain_ground(name: str) -> None:
    found = ladder(name, True)
    assert delta_e(colors(found.at(0))[1], colors(found.at(1))[1]) > 30
    assert found.at(0.5) == found.plain
    assert ladder(name, False).at(0) == found.plain


def test_colour_blind_eyes_can_tell_the_ends_apart() -> None:
    found = ladder("blue-orange", True)
    for deficiency in ("protanopia", "deuteranopia", "tritanopia"):
        assert delta_e(colors(found.at(0))[1], colors(found.at(1))[1], deficiency) > 60


@pytest.mark.parametrize("name", ANSI)
def test_the_terminals_own_colours_are_not_mixed(name: str) -> None:
    found = ladder(name, True)
    assert len(found.steps) == 5
    assert all(style.color and style.color.triplet is None for style in (*found.steps, *found.marks))
    assert found.at(0.5) == found.plain
    assert len(set(found.steps)) == 5


@pytest.mark.parametrize("diverging", [True, False])
def test_without_colour_there_are_attributes_alone(diverging: bool) -> None:
    found = heat_ladder({}, diverging=diverging, colorless=True)
    styles = [*found.steps, *found.marks, found.missing, found.plain]
    assert all(style.color is None and style.bgcolor is None for style in styles)
    assert found.at(1).bold
    assert not found.at(0.5 if diverging else 0).bold
    assert found.missing != found.plain


def test_every_block_is_used_and_the_ends_and_zero_have_theirs() -> None:
    for diverging in (True, False):
        assert "".join(dict.fromkeys(block(place, diverging=diverging) for place in POSITIONS)) == BARS
    assert [block(place, diverging=True) for place in (0, 0.5, 1)] == ["▁", "▄", "█"]
    assert [block(place, diverging=False) for place in (0, 1)] == ["▁", "█"]
    assert block(math.nan, diverging=True) == "×"


def test_underlines_show_thirds_of_the_magnitude() -> None:
    diverging = {0.5: 0, 0.6: 0, 0.7: 1, 0.3: 1, 0.8: 1, 0.9: 2, 0: 2, math.nan: 0}
    for is_diverging, expected in ((True, diverging), (False, {0.3: 0, 0.4: 1, 0.6: 1, 0.7: 2, math.nan: 0})):
        for position, lines in expected.items():
            style = underline_style(position, diverging=is_diverging)
            assert (bool(style.underline) + bool(style.underline2)) == lines, (is_diverging, position)
