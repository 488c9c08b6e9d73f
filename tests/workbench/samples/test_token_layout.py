"""Tokens in lines: nothing is lost, no line is too wide, no character is torn apart, every token has its place."""

from __future__ import annotations

import dataclasses
import itertools
import re
import unicodedata
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len
from token_samples import token_sample

from workbench.run.sample_table import TokenSample
from workbench.samples.token_layout import LONGEST_PROMPT, TokenLayout, TokenSpan, lay_out, response_end
from workbench.text import visible

PIECES = (
    *(" joy", " the", "umph", "a", " ", "   ", "\t", "don’t", "\n", "\n\n", ".\n", " a b  c ", "x" * 70, "", "", "ã"),
    *("日本", " 日本語が", "é", "e\u0301", "\u0301", "\u0301bc", "\u200d", "👩", "🚀", "👨‍👩‍👧", "❤", "\ufe0f", "👍🏽"),
    *("🇩", "🇪", "🇩🇪", "क्षि", "שלום", "\x1b[31m", "\x9b", "\u202e", "\u2028", "\ud800", "\xa0", "[/x]", "<|end|>"),
)
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=40)
WIDTHS = st.integers(20, 200)


def sample(texts: list[str], **changes: Any) -> TokenSample:
    """Return a sample of these texts; what else a token has plays no part in the layout."""
    known = {"prompt": "", "completion": "".join(texts), "truncated": False, "tokens": range(len(texts))}
    return dataclasses.replace(token_sample(length=1), texts=texts, **(known | changes))


def laid_out(texts: list[str], width: int = 40, *, whitespace: bool = False, **changes: Any) -> TokenLayout:
    return lay_out(sample(texts, **changes), width, whitespace=whitespace)


def drawn(layout: TokenLayout) -> list[str]:
    return ["".join(span.text for span in line) for line in layout.lines]


def without_marks(text: str) -> str:
    """Return `text` without what the layout adds or draws otherwise: carriers, tokens without text, spaces."""
    return re.sub("[◌∅· ]", "", text.replace("⏎", "\n"))


def spans_of(layout: TokenLayout) -> list[TokenSpan]:
    return [span for line in layout.lines for span in line if span.token >= 0]


@given(texts=TEXTS, width=WIDTHS, whitespace=st.booleans(), cut=st.integers(0, 30), truncated=st.booleans())
@example(["e", "\u0301", "\u200d"], 20, False, 0, True)
@example([""], 20, False, 0, False)
def test_the_spans_joined_are_the_response_and_no_line_is_too_wide(
    texts: list[str], width: int, whitespace: bool, cut: int, truncated: bool
) -> None:
    whole = "".join(texts)
    layout = laid_out(
        texts,
        width,
        whitespace=whitespace,
        truncated=truncated,
        completion=whole[: len(whole) - cut],
        prompt="Once upon\n a 日本 time",
    )
    shown = "".join(span.text for span in spans_of(layout))
    expected = "".join(visible(f"◌{one}", keep_newlines=True)[1:] for one in whole)
    assert without_marks(shown) == without_marks(expected)
    for line in layout.lines:
        column = 0
        for span in line:
            assert span.width == cell_len(span.text)
            assert span.start == column
            column += span.width
        assert column <= width


@given(texts=TEXTS, width=WIDTHS)
def test_tokens_are_in_order_and_each_has_a_place(texts: list[str], width: int) -> None:
    layout = laid_out(texts, width)
    tokens = [token for token, _ in itertools.groupby(span.token for span in spans_of(layout))]
    assert tokens == sorted({*tokens})
    assert len(layout.places) == len(texts)
    assert layout.places == sorted(layout.places)
    for token in range(len(texts)):
        cells = layout.cells_of(token)
        assert cells
        assert all(span.width for _, span in cells)
        assert all(layout.token_at(line, span.start) == span.token for line, span in cells)


@given(texts=TEXTS, width=WIDTHS)
def test_nothing_that_is_drawn_is_obeyed_by_a_terminal(texts: list[str], width: int) -> None:
    text = "".join(drawn(laid_out(texts, width, whitespace=True, prompt="".join(texts))))
    obeyed = {one for one in text if unicodedata.category(one) in {"Cc", "Cf", "Cs", "Zl", "Zp"}}
    assert obeyed <= {"\u200c"}


@given(words=st.lists(st.text("abcdefghij", min_size=1, max_size=18), min_size=1, max_size=20), width=WIDTHS)
def test_a_word_of_several_tokens_stays_on_one_line_where_it_fits(words: list[str], width: int) -> None:
    texts = [part for word in words for part in (" " + word[:5], word[5:10], word[10:]) if part]
    layout = laid_out(texts, width)
    for line, following in itertools.pairwise(layout.lines):
        assert following[0].text.startswith(" ")
        assert sum(span.width for span in line) + len(next_word(following)) > width


def next_word(line: list[TokenSpan]) -> str:
    text = "".join(span.text for span in line)
    return text[: text.find(" ", 1) if " " in text[1:] else len(text)]


def test_text_longer_than_a_line_is_split_between_characters() -> None:
    assert drawn(laid_out(["ab", " " + "x" * 19], 20)) == ["ab", " " + "x" * 19], "one of just a line is not"
    assert drawn(laid_out(["ab", "日" * 12, "x" * 25], 20)) == ["ab" + "日" * 9, "日日日" + "x" * 14, "x" * 11]


def test_a_newline_can_be_seen_and_breaks_the_line() -> None:
    layout = laid_out([" one", ".\n", "\n", "\n\n", "two"])
    assert drawn(layout) == [" one.⏎", "⏎", "⏎", "⏎", "two"]
    assert [span.token for _, span in layout.cells_of(3)] == [3, 3]
    assert {span.kind for span in spans_of(layout) if span.text == "⏎"} == {"newline"}


def test_a_newline_goes_with_its_word_where_the_line_is_full() -> None:
    assert drawn(laid_out([" one", " two", " three", " four", "\n", "x"], 19)) == [" one two three", " four⏎", "x"]


def test_a_character_of_several_tokens_is_drawn_once_and_found_by_each_of_them() -> None:
    layout = laid_out([" a", "", "", "日", "b"])
    assert drawn(layout) == [" a日b"]
    assert [layout.cells_of(token)[0][1].text for token in range(5)] == [" a", "日", "日", "日", "b"]
    assert layout.places == [(0, 0), (0, 2), (0, 2), (0, 2), (0, 4)]


@pytest.mark.parametrize(
    ("texts", "cell", "last"),
    [
        (["xe", "\u0301"], "e\u0301", 1),
        (["x", "🇩", "🇪", "y"], "🇩🇪", 2),
    ],
)
def test_a_cluster_that_a_terminal_draws_as_one_is_never_broken(texts: list[str], cell: str, last: int) -> None:
    for width in range(20, 24):
        layout = laid_out(["-" * 18, *texts], width)
        (line,) = (line for line in drawn(layout) if cell in line)
        holders = {span.text for _, span in layout.cells_of(last + 1)}
        assert len(holders) == 1
        assert holders.pop().endswith(cell)
        assert cell_len(line) <= width


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        (["x", "❤", "\ufe0f"], "❤"),
        (["x", "👍", "🏽"], "👍"),
        (["x", "👩", "\u200d"], "👩"),
        (["x", "b", "\u200d"], "b"),
    ],
)
def test_what_changes_the_width_of_a_character_is_drawn_as_that_character(texts: list[str], shown: str) -> None:
    layout = laid_out([*texts, "🚀"])
    assert drawn(layout) == [f"x{shown}🚀"]
    assert [span.text for _, span in layout.cells_of(2)] == [shown]


def test_a_combining_character_with_nothing_before_it_gets_a_carrier() -> None:
    assert drawn(laid_out(["\u0301", "a", "\n", "\u200d"])) == ["◌\u0301a⏎", "◌"]


def test_combining_characters_do_not_pile_up_without_end() -> None:
    layout = laid_out(["a", *["\u0301"] * 100], 200)
    assert len(layout.lines) == 1
    assert max(len(part) for part in drawn(layout)[0].split("◌")) <= 17


def test_letters_after_a_joiner_keep_their_columns() -> None:
    (line,) = laid_out(["ab\u200dcd"]).lines
    assert all(span.width == cell_len(span.text) for span in line)
    assert sum(span.width for span in line) == 4


def test_tokens_without_text_at_the_end_can_be_seen() -> None:
    layout = laid_out(["a", "", ""], truncated=True)
    assert drawn(layout)[0].startswith("a∅∅")
    assert [span.text for _, span in layout.cells_of(2)] == ["∅"]


def test_spaces_are_dots_where_they_are_asked_for() -> None:
    assert drawn(laid_out([" a", "  b"], whitespace=True, prompt="x y\nz")) == [
        "x·y⏎",
        "z",
        "── response ".ljust(40, "─"),
        "·a··b",
    ]
    assert drawn(laid_out([" a"], whitespace=True, truncated=True)) == ["·a ✂ cut at 1 token"], "only of the text"


@pytest.mark.parametrize(
    ("texts", "completion", "truncated", "last"),
    [
        ([" so", ".", "<|im_end|>"], " so.", False, " so. ■ <|im_end|>"),
        ([" so", ".\n", "User", ":"], " so.", False, " so. ■ ⏎"),
        ([" so", " END now"], " so", False, " so ■  END now"),
        ([" a<|x|>", "b", "</s>"], " ab", False, " a<|x|>b ■ </s>"),
        ([" so", ""], " so", False, " so ■ ∅"),
        (["</s>"], "", False, " ■ </s>"),
        ([" so", "."], " so.", False, " so."),
        ([" so", "."], " so.", True, " so. ✂ cut at 2 tokens"),
        ([], "", False, "no tokens"),
    ],
)
def test_the_end_of_a_response_is_marked(texts: list[str], completion: str, truncated: bool, last: str) -> None:
    layout = laid_out(texts, completion=completion, truncated=truncated)
    assert drawn(layout)[0] == last


def test_a_stop_text_in_the_middle_of_a_token_divides_it() -> None:
    texts = [" so", "ENDx"]
    assert response_end(sample(texts, completion=" soEN")) == 5
    spans = [span for span in spans_of(laid_out(texts, completion=" soEN")) if span.token == 1]
    assert [(span.kind, span.text) for span in spans] == [("text", "EN"), ("stop", "Dx")]


def test_the_prompt_comes_first_and_a_long_ones_end_is_shown() -> None:
    layout = laid_out([" a"], prompt="x y " * 100_000)
    assert drawn(layout)[0] == f"… {400_000 - LONGEST_PROMPT:,} earlier characters"
    prompt = "".join(span.text for line in layout.lines for span in line if span.kind == "prompt")
    assert prompt == "x y " * (LONGEST_PROMPT // 4)
    assert drawn(layout)[layout.response] == " a"
    assert {span.kind for line in layout.lines[: layout.response] for span in line} == {"note", "prompt", "rule"}


def test_the_token_above_and_below_is_that_next_in_column() -> None:
    layout = laid_out(["aaaa", "bb", "\n", "c", "ddd", "\n", "\n", "eeee", "ffff"], prompt="asked")
    above_below = [(layout.lines_away(token, -1), layout.lines_away(token, 1)) for token in range(9)]
    assert above_below == [
        (None, 3),  # aaaa over c
        (None, 5),  # bb, column 4, over the newline after ddd
        (None, 5),
        (0, 6),
        (0, 6),
        (1, 6),
        (3, 7),
        (6, None),
        (6, None),
    ]
    assert layout.lines_away(0, 50) == 7
    assert layout.lines_away(8, -50) == 1
    assert layout.lines_away(99, 1) is None


def test_a_token_of_several_lines_is_left_at_once() -> None:
    layout = laid_out(["x" * 80, "y"], 20)
    assert layout.lines_away(0, 1) == 1
    assert layout.lines_away(1, -1) == 0


def test_a_place_between_tokens_belongs_to_none() -> None:
    layout = laid_out(["ab", "</s>"], completion="ab", truncated=False)
    assert [layout.token_at(0, column) for column in range(10)] == [0, 0, None, None, None, 1, 1, 1, 1, None]
    assert layout.token_at(7, 0) is None
