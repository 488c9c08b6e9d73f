"""Heat: readable colours that grow with the value, in every shipped theme, and marks without colour."""

from __future__ import annotations

import itertools
import math

import pytest
from colors import SPECS, XTERM, XTERM_DARK, contrast, delta_e
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.strip import Strip

from workbench.kit.glyphs import BARS, block
from workbench.samples.channels import Ladder, heat_ladder, underline_style

MIXED = [name for name, spec in SPECS.items() if not spec.ansi]
ANSI = [name for name, spec in SPECS.items() if spec.ansi]
POSITIONS = [place / 200 for place in range(201)]


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


@given(a=st.floats(0, 1), b=st.floats(0, 1), diverging=st.booleans())
def test_blocks_rise_with_the_value(a: float, b: float, diverging: bool) -> None:
    low, high = sorted((a, b))
    assert BARS.index(block(low, diverging=diverging)) <= BARS.index(block(high, diverging=diverging))


def test_every_block_is_used_and_the_ends_and_zero_have_theirs() -> None:
    for diverging in (True, False):
        assert "".join(dict.fromkeys(block(place, diverging=diverging) for place in POSITIONS)) == BARS
    assert [block(place, diverging=True) for place in (0, 0.5, 1)] == ["▁", "▄", "█"]
    assert [block(place, diverging=False) for place in (0, 1)] == ["▁", "█"]
    assert block(math.nan, diverging=True) == "×"


@pytest.mark.parametrize(
    ("position", "diverging", "lines"),
    [
        *[
            (place, True, lines)
            for place, lines in ((0.5, 0), (0.6, 0), (0.7, 1), (0.3, 1), (0.8, 1), (0.9, 2), (0, 2))
        ],
        *[(place, False, lines) for place, lines in ((0.3, 0), (0.4, 1), (0.6, 1), (0.7, 2))],
        *[(math.nan, diverging, 0) for diverging in (True, False)],
    ],
)
def test_underlines_show_thirds_of_the_magnitude(position: float, diverging: bool, lines: int) -> None:
    style = underline_style(position, diverging=diverging)
    assert (bool(style.underline) + bool(style.underline2)) == lines


def test_two_lines_reach_the_terminal() -> None:
    strip = Strip([Segment("x", underline_style(1.0, diverging=False))])
    assert "\x1b[4;21m" in strip.render(Console(force_terminal=True, color_system="truecolor"))
