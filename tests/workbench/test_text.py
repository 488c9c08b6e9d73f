"""Model text on a terminal is shown, never obeyed; texts are packed into columns; numbers read the same everywhere."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from workbench.text import aligned, as_sent, duration, number, packed, percent, typed, visible

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain text, Ünïcödé, 你好, 👩🚀, می‌خواهم", "plain text, Ünïcödé, 你好, 👩🚀, می‌خواهم"),
        ("\x1b[31m", "␛[31m"),
        ("\x00\b\t\n\r\x7f", "␀␈␉␊␍␡"),
        ("\x9b31m", r"\x9b31m"),
        ("\u202eevil\u202c", r"\u202eevil\u202c"),
        ("\u2066\u2069\u200f", r"\u2066\u2069\u200f"),
        ("\ud800", r"\ud800"),
        ("\u2028\u200b\ufeff", r"\u2028\u200b\ufeff"),
        ("\U000e0041", r"\U000e0041"),
        ("a\u200db\u200c", r"a\u200db\u200c"),
        ("\u200d \ufe0f \U0001f3fd", r"\u200d \ufe0f \U0001f3fd"),
        ("\u3164\uffa0", r"\u3164\uffa0"),
    ],
)
def test_characters_that_a_terminal_obeys_are_shown_instead(raw: str, shown: str) -> None:
    assert visible(raw) == shown


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("👩\u200d👩\u200d👧", "👩👩👧"),
        ("🏳\ufe0f\u200d🌈", "🏳🌈"),
        ("❤\ufe0f", "❤"),
        ("1\ufe0f\u20e3", "1\u20e3"),
        ("👍🏽", "👍"),
        ("🇳🇴", "🇳🇴"),
        ("ශ්\u200dරී", "ශ්රී"),
        ("علی\u200cرضا", "علی\u200cرضا"),
    ],
)
def test_emoji_are_shown_in_the_columns_that_every_terminal_gives_them(raw: str, shown: str) -> None:
    assert visible(raw) == shown
    assert cell_len(shown) == sum(map(cell_len, shown))
    assert visible(raw, joined=True) == raw


def test_columns_line_up_whatever_the_script_of_a_name() -> None:
    widths = {"علی\u200cرضا": 6, "ana 👩\u200d💻": 6, "田中": 4, "Anna-Lena": 9}
    lines = aligned([(name, "1") for name in widths])
    assert {widths[name] + len(line) - len(name) for name, line in zip(widths, lines, strict=True)} == {12}


def test_what_was_shown_and_not_changed_is_sent_as_it_was() -> None:
    prompt = "❤\ufe0f 👩\u200d🚀\x1b"
    assert as_sent(typed(prompt), prompt) == prompt


def test_every_control_and_surrogate_is_made_visible() -> None:
    everything = "".join(map(chr, [*range(0x20), *range(0x7F, 0xA0), *range(0xD800, 0xE000), 0x202E, 0x2067]))
    assert not CONTROL.search(visible(everything))
    visible(everything).encode("utf-8")


def test_newlines_stay_where_several_lines_are_shown() -> None:
    assert visible("a\nb\x1b", keep_newlines=True) == "a\nb␛"


PIECES = st.lists(st.text("ab日", min_size=1, max_size=9), max_size=8)


@given(PIECES, st.integers(0, 40), st.integers(0, 3))
def test_pieces_are_packed_in_order_into_lines_that_could_take_no_more(pieces: list[str], width: int, gap: int) -> None:
    lines = packed(pieces, width, gap)
    assert [piece for line in lines for piece in line] == pieces
    texts = [(" " * gap).join(line) for line in lines]
    assert all(cell_len(text) <= width or len(line) == 1 for text, line in zip(texts, lines, strict=True))
    assert all(cell_len(text) + gap + cell_len(lines[1:][n][0]) > width for n, text in enumerate(texts[:-1]))


@pytest.mark.parametrize("unknown", [None, math.nan, math.inf, -math.inf])
def test_an_unknown_number_is_a_dash(unknown: float | None) -> None:
    assert number(unknown) == number(unknown, 2, signed=True, width=8) == percent(unknown) == "-"


@pytest.mark.parametrize(
    ("value", "digits", "signed", "text"),
    [(1.25, 2, False, "1.25"), (-1.25, 1, True, "-1.2"), (0.5, 3, True, "+0.500"), (12345.0, 0, False, "12345")],
)
def test_numbers_have_the_digits_and_the_sign_asked_for(value: float, digits: int, signed: bool, text: str) -> None:
    assert number(value, digits, signed=signed) == text


@pytest.mark.parametrize(("value", "text"), [(1815.0, "1815.00"), (-181512.25, "-181512"), (12345678.0, "1.2e+07")])
def test_a_large_number_loses_decimals_before_it_is_written_in_scientific_notation(value: float, text: str) -> None:
    assert number(value, 3, width=7) == text


@pytest.mark.parametrize("value", [1e300, -1e300, 123456789.0, -1e9, 1e-300])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("width", [7, 8, 12])
def test_a_huge_number_stays_within_its_columns(value: float, signed: bool, width: int) -> None:
    text = number(value, 3, signed=signed, width=width)
    assert len(text) <= width
    assert float(text) == pytest.approx(value, rel=0.5, abs=1e-3)


@pytest.mark.parametrize(
    ("share", "digits", "text"), [(0.144, 0, "14%"), (1.0, 0, "100%"), (0.0123, 1, "1.2%"), (-0.5, 0, "-50%")]
)
def test_shares_are_written_as_percentages(share: float, digits: int, text: str) -> None:
    assert percent(share, digits) == text


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (4.23, "4.2s"),
        (42.4, "42s"),
        (59.6, "1m 00s"),
        (380, "6m 20s"),
        (11100, "3h 05m"),
        (math.nan, "-"),
        (math.inf, "-"),
    ],
)
def test_durations_are_written_in_the_unit_of_their_size(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown
