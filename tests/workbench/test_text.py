"""Model text on a terminal is shown, never obeyed; texts are packed into its columns."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from workbench.text import as_sent, packed, typed, visible

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain text, Ünïcödé, 你好, 👩🚀, می‌خواهم", "plain text, Ünïcödé, 你好, 👩🚀, می‌خواهم"),
        ("\x1b[31m", "␛[31m"),
        ("\r", "␍"),
        ("\b", "␈"),
        ("\t\n", "␉␊"),
        ("\x00\x7f", "␀␡"),
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


def test_the_first_line_holds_as_many_of_the_first_pieces_as_fit() -> None:
    assert packed(["one", "two", "three"], 3, 3)[0] == ["one"]
    assert packed(["one", "two", "three"], 9, 3)[0] == ["one", "two"]
    assert packed(["one", "two", "three"], 17, 3) == [["one", "two", "three"]]
    assert packed(["日本"], 3, 3) == [["日本"]]
    assert packed([], 3, 3) == [[]]
