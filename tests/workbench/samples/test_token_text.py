"""The token view: its lines, what it draws, how its cursor moves, and a legend with true numbers."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import unicodedata
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.segment import Segment
from styles_helper import styles_path
from textual.app import App, ComposeResult
from textual.containers import Vertical
from textual.pilot import Pilot
from textual.widget import Widget
from token_samples import token_sample

from workbench.kit.banner import Banner
from workbench.kit.glyphs import BARS as BLOCKS
from workbench.kit.theming import ThemedApp, apply_themes, no_color, shipped_themes
from workbench.run.sample_table import TokenSample
from workbench.samples.advantage_screen import AdvantageScreen
from workbench.samples.channels import CHANNELS, channel_scale
from workbench.samples.sample_view import TokenLegend, color_legend, underline_legend
from workbench.samples.token_layout import LONGEST_PROMPT, TokenLayout, TokenSpan, lay_out
from workbench.samples.token_text import TokenText
from workbench.text import visible

SIZE = (60, 16)
TEXTS = [" The", " band", " play", "ed", ".", "\n", "It", " was", " joy", "<|im_end|>"]
ADVANTAGES = [-2.0, -1.0, 0.0, 0.5, 1.0, 2.0, 0.1, math.nan, 0.0, math.inf]
FINITE = st.floats(allow_nan=False, allow_infinity=False)


class Probe(ThemedApp[None]):
    CSS_PATH = styles_path("app.tcss", "tokens.tcss")

    def __init__(self) -> None:
        super().__init__(ansi_color=True if no_color() else None)
        self.heard: list[Any] = []

    def compose(self) -> ComposeResult:
        with Vertical():
            yield (text := TokenText())
            yield TokenLegend(text)

    @property
    def text(self) -> TokenText:
        return self.query_one(TokenText)

    def on_token_text_moved(self) -> None:
        self.heard.append(self.text.cursor)

    def on_token_text_channel_changed(self) -> None:
        self.query_one(TokenLegend).refresh(layout=True)


def sample(texts: list[str] | None = None, advantages: list[float] | None = None, **changes: Any) -> TokenSample:
    made = token_sample(texts=texts or TEXTS, **({"completion": " The band played.\nIt was joy"} | changes))
    if advantages is None and texts is None:
        advantages = ADVANTAGES
    return made if advantages is None else dataclasses.replace(made, numbers={**made.numbers, "advantages": advantages})


@asynccontextmanager
async def shown(
    given: TokenSample, theme: str = "workbench", cursor: int = 0
) -> AsyncIterator[tuple[Pilot[None], TokenText]]:
    """Show `given` with the focus."""
    app = Probe()
    async with app.run_test(size=SIZE) as pilot:
        apply_themes(app, shipped_themes())
        app.theme = theme
        app.text.show(given, cursor)
        app.text.focus()
        await pilot.pause()
        yield pilot, app.text


def rows(text: TokenText) -> list[str]:
    return ["".join(segment.text for segment in text.render_line(y)).rstrip() for y in range(text.size.height)]


def segment_of(text: TokenText, word: str) -> Segment:
    """Return the segment that draws a token's text."""
    found = [segment for y in range(text.size.height) for segment in text.render_line(y) if segment.text == word]
    assert len(found) == 1, word
    return found[0]


async def test_prompt_tokens_and_boundary_are_drawn_and_colours_follow_the_value() -> None:
    async with shown(sample(), cursor=6) as (_pilot, text):
        assert rows(text)[:4] == [
            "  Prompt 0: once upon a time",
            "  ── response " + "─" * 45,
            "   The band played.⏎",
            "  It was joy ■ <|im_end|>",
        ]
        grounds = {word: segment_of(text, word).style.bgcolor for word in (" The", " band", " play", "ed", ".")}
        plain = segment_of(text, " play").style
        assert plain.color.triplet != grounds[" The"].triplet
        assert len(set(grounds.values())) == 5
        low, high = grounds[" The"].triplet, segment_of(text, "⏎").style.bgcolor.triplet
        assert low.red > low.blue
        assert high.blue > high.red
        assert segment_of(text, " was").style.italic  # NaN
        assert segment_of(text, "<|im_end|>").style.bgcolor.triplet == high


async def test_the_cursor_walks_tokens_lines_and_samples() -> None:
    async with shown(sample()) as (pilot, text):
        await pilot.press("right", "right", "left", "left", "left", "down", "up", "down", "down", "home")
        assert pilot.app.heard == [0, 1, 2, 1, 0, 6, 0, 6, 0]
        text.cursor = 99
        assert text.cursor == 9
        text.show(sample([" one", " two"]), cursor=5)
        await pilot.pause()
        assert (text.cursor, pilot.app.heard[-1]) == (1, 1)


@pytest.mark.parametrize("theme", ["workbench", "paper", "ansi-16", "high-contrast"])
async def test_the_cursor_is_visible_and_stays_marked_out_of_focus(theme: str) -> None:
    async with shown(sample(), theme, cursor=3) as (pilot, text):
        focused = segment_of(text, "ed").style
        assert focused.reverse
        assert focused.bold
        assert not any(
            segment.style.reverse for y in range(8) for segment in text.render_line(y) if segment.text != "ed"
        )
        pilot.app.set_focus(None)
        await pilot.pause()
        assert segment_of(text, "ed").style.reverse
        assert not segment_of(text, "ed").style.bold


async def test_a_move_reaches_the_screen() -> None:
    async with shown(token_sample(length=400)) as (pilot, _text):
        for key in ["right", "down", "pagedown", "left", "up", "home"]:
            await pilot.press(key)
            await pilot.pause()
            strips = [strip.crop(0, SIZE[0] - 1) for strip in pilot.app.screen._compositor.render_strips()]
            marked = [segment.text for strip in strips for segment in strip if segment.style.reverse]
            token = pilot.app.text.sample.texts[pilot.app.text.cursor].replace("\n", "⏎")
            assert marked in ([token], [token.removeprefix(" ")]), "a space stays at the end of the line before"


async def test_a_click_moves_and_a_double_click_explains() -> None:
    async with shown(sample()) as (pilot, text):
        await pilot.click(TokenText, offset=(2 + 5, 2))
        assert text.cursor == 1
        await pilot.click(TokenText, offset=(1, 3))
        await pilot.click(TokenText, offset=(50, 9))
        assert pilot.app.heard == [0, 1]
        await pilot.click(TokenText, offset=(2 + 5, 3), times=2)
        await pilot.pause()
        assert isinstance(pilot.app.screen, AdvantageScreen)
        await pilot.press("left", "escape")
        await pilot.pause()
        assert text.cursor == 6
        assert text.has_focus
        await pilot.press("enter")
        assert isinstance(pilot.app.screen, AdvantageScreen)


async def test_each_channel_has_its_key_and_underlines_by_another() -> None:
    async with shown(sample()) as (pilot, text):
        for key, name in zip("kavrtdile", CHANNELS, strict=True):
            await pilot.press(key)
            assert text.channel == name
            await pilot.press("underscore")
            assert text.underline == name
            await pilot.press("underscore")
            assert text.underline == ""
        await pilot.press("k", "underscore", "a")
        assert (text.channel, text.underline) == ("advantage", "kl")


async def test_underlines_show_a_second_channel() -> None:
    async with shown(sample(), cursor=9) as (pilot, text):
        text.channel, text.underline = "kl", "advantage"
        await pilot.pause()
        lines = [
            (bool(segment.style.underline), bool(segment.style.underline2))
            for segment in (segment_of(text, word) for word in (" play", " band", " The", " was"))
        ]
        assert lines == [(False, False), (True, False), (True, True), (False, False)]
        assert legend(pilot.app)[1].startswith("underline: advantage  ─ beyond ±0.67  ═ beyond ±1.33 · 1 NaN")


async def test_blocks_are_below_their_tokens() -> None:
    async with shown(sample()) as (pilot, text):
        await pilot.press("g")
        assert rows(text)[2:6] == [
            "   The band played.⏎",
            "  ▁▁▁▁▃▃▃▃▃▄▄▄▄▄▅▅▆█",
            "  It was joy ■ <|im_end|>",
            "  ▄▄××××▄▄▄▄   ██████████",
        ]
        await pilot.press("g")
        assert [row[:1] for row in rows(text)[2:12]] == [" ", "R", "K", "V", "A"] * 2
        assert rows(text)[6] == "A ▁▁▁▁▃▃▃▃▃▄▄▄▄▄▅▅▆█"
        await pilot.press("down")
        assert text.cursor == 6
        await pilot.press("g")
        assert rows(text)[3] == "  It was joy ■ <|im_end|>"


async def test_outliers_can_be_visited_in_both_directions() -> None:
    advantages = [0.1, -0.2, 9.0, 0.3, -0.1, 0.2, 0.1, math.nan, 0.0, 0.1]
    async with shown(sample(TEXTS, advantages)) as (pilot, text):
        await pilot.press("right_square_bracket")
        assert text.cursor == 2
        await pilot.press("full_stop", "right_square_bracket")
        assert text.cursor == 7
        await pilot.press("comma")
        assert text.cursor == 2
        await pilot.press("left_square_bracket")
        assert text.cursor == 2
        assert "No more outliers of advantage in this direction" in str(pilot.app.query_one(Banner).render())


async def test_a_long_sample_opens_at_its_cursor_and_keeps_it_in_view() -> None:
    given = token_sample(length=2000, prompt="words and words\n" * 200)
    async with shown(given) as (pilot, text):
        height = text.size.height
        assert any("response" in row for row in rows(text))
        for key in ["down"] * 30 + ["pagedown"] * 3 + ["right"] * 20 + ["pageup"] * 2 + ["up"] * 5:
            await pilot.press(key)
            assert reversed_rows(text)
        text.cursor = 1999
        await pilot.pause()
        assert reversed_rows(text)
        assert text.scroll_offset.y == text.max_scroll_y > height
        await pilot.press("home", "up", "pageup")
        assert text.cursor == 0
        assert "words and words" in rows(text)[0]


def reversed_rows(text: TokenText) -> list[int]:
    return [y for y in range(text.size.height) if any(segment.style.reverse for segment in text.render_line(y))]


async def test_without_colour_attributes_and_blocks_show_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with shown(sample(), cursor=3) as (pilot, text):
        assert text.blocks == "one"
        assert "▁▁▁▁▃▃▃▃▃" in rows(text)[3]
        drawn = [segment.style for segment in text.render_line(2)][1:6]
        assert all(style.color is None and style.bgcolor is None for style in drawn)
        assert segment_of(text, "ed").style.reverse
        assert "-2.00 ▁▂▃▄▅▆▇█ +2.00" in legend(pilot.app)[0]


@pytest.mark.parametrize(
    "changes", [{"length": 0}, {"texts": ["", ""]}, {"texts": ["\x1b[31m[/x]", "\x9b\u202e", "\ud800"]}]
)
async def test_odd_samples_are_shown_and_never_obeyed(changes: dict[str, Any]) -> None:
    given = empty() if "length" in changes else token_sample(**changes)
    async with shown(given) as (pilot, text):
        await pilot.press("g", "g", "k", "underscore", "right", "down", "up", "right_square_bracket", "W")
        assert "\x1b" not in "".join(rows(text))
        await pilot.resize_terminal(12, 5)
        assert rows(text)


def empty() -> TokenSample:
    nothing = {"texts": [], "tokens": [], "ratios": [], "alternatives": [], "completion": "", "numbers": {}}
    return dataclasses.replace(token_sample(length=1), **nothing)


async def test_a_channel_that_was_not_saved_is_reported_and_colours_nothing() -> None:
    given = dataclasses.replace(sample(), numbers={})
    async with shown(given, cursor=9) as (pilot, text):
        assert legend(pilot.app) == ["advantage  not saved in this run"]
        one, other = (segment_of(text, word).style for word in (" The", " play"))
        assert (one.color, one.bgcolor, one.underline) == (other.color, other.bgcolor, other.underline)
        await pilot.press("g", "e", "underscore", "a")
        assert rows(text)[3] == ""
        assert legend(pilot.app)[1] == "underline: entropy  not saved in this run"


async def test_the_text_follows_the_theme_and_the_width() -> None:
    async with shown(sample(), cursor=9) as (pilot, text):
        dark = segment_of(text, " The").style
        pilot.app.theme = "paper"
        await pilot.pause()
        assert segment_of(text, " The").style != dark
        await pilot.resize_terminal(20, 16)
        await pilot.pause()
        assert max(cell_len(row) for row in rows(text)) <= 20
        assert [row.strip() for row in rows(text) if "band" in row] == ["The band"]


@pytest.mark.parametrize("hidden", [TokenText, Vertical])
async def test_a_sample_shown_while_hidden_is_there_afterwards(hidden: type[Widget]) -> None:
    async with shown(sample()) as (pilot, text):
        pilot.app.query_one(hidden).display = False
        await pilot.pause()
        text.show(sample([" other", " words"], completion=" other words"))
        pilot.app.query_one(hidden).display = True
        await pilot.pause()
        assert "   other words" in rows(text)[2]


# The legend


def legend(app: App[None]) -> list[str]:
    widget = app.query_one(TokenLegend)
    return ["".join(segment.text for segment in widget.render_line(y)).rstrip() for y in range(widget.size.height)]


def legend_text(name: str, values: list[float], width: int = 120, **more: Any) -> str:
    channel = CHANNELS[name]
    line = color_legend(channel, channel_scale(values, channel.diverging), width, **more)
    return "".join(text for text, _ in line)


@given(
    name=st.sampled_from(list(CHANNELS)),
    values=st.lists(FINITE | st.just(math.nan), max_size=5),
    width=st.integers(0, 120),
    under=st.sampled_from(list(CHANNELS)),
    shared=st.booleans(),
)
def test_a_legend_fits_whatever_the_width(name: str, values: list[float], width: int, under: str, shared: bool) -> None:
    channel, other = CHANNELS[name], CHANNELS[under]
    scales = (channel_scale(values, channel.diverging), channel_scale(values, other.diverging))
    lines = [color_legend(channel, scales[0], width, shared=shared), underline_legend(other, scales[1], width)]
    assert all(sum(cell_len(text) for text, _ in line) <= width for line in lines)


def test_a_narrow_legend_drops_the_least_informative_parts() -> None:
    values = [place / 98 for place in range(1, 99)] + [-3.5, 2.25, math.nan, math.nan]
    found = [legend_text("advantage", values, width) for width in (120, 70, 40, 34, 28)]
    assert found == [
        f"advantage  -1.00 {BLOCKS} +1.00  from -3.50 to +2.25 · 2 NaN · scale of this sample",
        f"advantage ‹-1.00 {BLOCKS} +1.00› · 2 NaN",
        f"advantage ‹-1.00 {BLOCKS} +1.00› · 2 NaN",
        f"advantage ‹-1.00 {BLOCKS} +1.00›",
        "advantage ‹-1.00 to +1.00›",
    ]


def test_a_legend_shows_ratios_and_log_probs_in_their_usual_form() -> None:
    assert legend_text("ratio", [math.log(0.5), math.log(1.25)]).startswith(f"ratio  0.50 {BLOCKS} 2.00 ")
    assert legend_text("logprob", [0.0, 4.0]).startswith(f"log-prob  0.00 {BLOCKS} -4.00 ")
    under = underline_legend(CHANNELS["ratio"], channel_scale([3 * math.log(2)], True), 80)
    assert [text for text, _ in under] == ["underline: ratio  ─ beyond 0.50/2.00  ═ beyond 0.25/4.00"]


PIECES = (
    *(" joy", " the", "umph", "a", " ", "   ", "\t", "don’t", "\n", "\n\n", ".\n", " a b  c ", "x" * 70, "", "", "ã"),
    *("日本", " 日本語が", "é", "e\u0301", "\u0301", "\u0301bc", "\u200d", "👩", "🚀", "👨‍👩‍👧", "❤", "\ufe0f", "👍🏽"),
    *("🇩", "🇪", "🇩🇪", "क्षि", "שלום", "\x1b[31m", "\x9b", "\u202e", "\u2028", "\ud800", "\xa0", "[/x]", "<|end|>"),
)
TEXT_LISTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=40)
WIDTHS = st.integers(20, 200)


def sample_of(texts: list[str], **changes: Any) -> TokenSample:
    """Return a sample of these texts; what else a token has plays no part in the layout."""
    known = {"prompt": "", "completion": "".join(texts), "truncated": False, "tokens": range(len(texts))}
    return dataclasses.replace(token_sample(length=1), texts=texts, **(known | changes))


def laid_out(texts: list[str], width: int = 40, *, whitespace: bool = False, **changes: Any) -> TokenLayout:
    return lay_out(sample_of(texts, **changes), width, whitespace=whitespace)


def lines_of(layout: TokenLayout) -> list[str]:
    return ["".join(span.text for span in line) for line in layout.lines]


def without_marks(text: str) -> str:
    """Return `text` without what the layout adds or draws otherwise: carriers, tokens without text, spaces."""
    return re.sub("[◌∅· ]", "", text.replace("⏎", "\n"))


def spans_of(layout: TokenLayout) -> list[TokenSpan]:
    return [span for line in layout.lines for span in line if span.token >= 0]


@given(texts=TEXT_LISTS, width=WIDTHS, whitespace=st.booleans(), cut=st.integers(0, 30), truncated=st.booleans())
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


@given(texts=TEXT_LISTS, width=WIDTHS)
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


@given(texts=TEXT_LISTS, width=WIDTHS)
def test_nothing_that_is_drawn_is_obeyed_by_a_terminal(texts: list[str], width: int) -> None:
    text = "".join(lines_of(laid_out(texts, width, whitespace=True, prompt="".join(texts))))
    obeyed = {one for one in text if unicodedata.category(one) in {"Cc", "Cf", "Cs", "Zl", "Zp"}}
    assert obeyed <= {"\u200c"}


@given(words=st.lists(st.text("abcdefghij", min_size=1, max_size=18), min_size=1, max_size=20), width=WIDTHS)
def test_a_word_of_several_tokens_stays_on_one_line_where_it_fits(words: list[str], width: int) -> None:
    texts = [part for word in words for part in (" " + word[:5], word[5:10], word[10:]) if part]
    layout = laid_out(texts, width)
    for line, following in itertools.pairwise(layout.lines):
        assert following[0].text[0] != " ", "the left edge is straight"
        assert line[-1].text.endswith(" ")
        assert line[-1].token < 0, "no token owns the space at a break, so it has no colour"
        assert sum(span.width for span in line) + len(next_word(following)) >= width


def next_word(line: list[TokenSpan]) -> str:
    text = "".join(span.text for span in line)
    return text.partition(" ")[0]


def test_text_longer_than_a_line_is_split_between_characters() -> None:
    assert lines_of(laid_out(["ab", " " + "x" * 19], 20)) == ["ab ", "x" * 19], "one of just a line is not"
    assert lines_of(laid_out(["ab", "日" * 12, "x" * 25], 21)) == ["ab" + "日" * 9, "日日日" + "x" * 14, "x" * 11]
    assert lines_of(laid_out(["ab", " ", "x" * 19], 20)) == ["ab ", "x" * 19]
    assert laid_out(["ab", " ", "x" * 19], 20).places == [(0, 0), (0, 2), (1, 0)], "a token of a space alone is there"


def test_a_newline_can_be_seen_and_breaks_the_line() -> None:
    layout = laid_out([" one", ".\n", "\n", "\n\n", "two"])
    assert lines_of(layout) == [" one.⏎", "⏎", "⏎", "⏎", "two"]
    assert [span.token for _, span in layout.cells_of(3)] == [3, 3]
    assert {span.kind for span in spans_of(layout) if span.text == "⏎"} == {"newline"}


def test_a_newline_goes_with_its_word_where_the_line_is_full() -> None:
    assert lines_of(laid_out([" one", " two", " three", " four", "\n", "x"], 19)) == [
        " one two three ",
        "four⏎",
        "x",
    ]


def test_a_character_of_several_tokens_is_drawn_once_and_found_by_each_of_them() -> None:
    layout = laid_out([" a", "", "", "日", "b"])
    assert lines_of(layout) == [" a日b"]
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
        (line,) = (line for line in lines_of(layout) if cell in line)
        holders = {span.text for _, span in layout.cells_of(last + 1)}
        assert len(holders) == 1
        assert holders.pop().endswith(cell)
        assert cell_len(line) <= width


def test_a_combining_character_with_nothing_before_it_gets_a_carrier() -> None:
    assert lines_of(laid_out(["\u0301", "a", "\n", "\u200d"])) == ["◌\u0301a⏎", "◌"]


def test_combining_characters_do_not_pile_up_without_end() -> None:
    layout = laid_out(["a", *["\u0301"] * 100], 200)
    assert len(layout.lines) == 1
    assert max(len(part) for part in lines_of(layout)[0].split("◌")) <= 17


def test_tokens_without_text_at_the_end_can_be_seen() -> None:
    layout = laid_out(["a", "", ""], truncated=True)
    assert lines_of(layout)[0].startswith("a∅∅")
    assert [span.text for _, span in layout.cells_of(2)] == ["∅"]


def test_spaces_are_dots_where_they_are_asked_for() -> None:
    assert lines_of(laid_out([" a", "  b"], whitespace=True, prompt="x y\nz")) == [
        "x·y⏎",
        "z",
        "── response ".ljust(40, "─"),
        "·a··b",
    ]
    assert lines_of(laid_out([" a"], whitespace=True, truncated=True)) == ["·a ✂\xa0cut\xa0at\xa01\xa0token"], (
        "only of the text"
    )


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
        ([" so", "."], " so.", True, " so. ✂\xa0cut\xa0at\xa02\xa0tokens"),
        ([], "", False, "no tokens"),
    ],
)
def test_the_end_of_a_response_is_marked(texts: list[str], completion: str, truncated: bool, last: str) -> None:
    layout = laid_out(texts, completion=completion, truncated=truncated)
    assert lines_of(layout)[0] == last


def test_a_stop_text_in_the_middle_of_a_token_divides_it() -> None:
    texts = [" so", "ENDx"]
    spans = [span for span in spans_of(laid_out(texts, completion=" soEN")) if span.token == 1]
    assert [(span.kind, span.text) for span in spans] == [("text", "EN"), ("stop", "Dx")]


def test_the_prompt_comes_first_and_a_long_ones_end_is_shown() -> None:
    layout = laid_out([" a"], prompt="x y " * 100_000)
    assert lines_of(layout)[0] == f"… {400_000 - LONGEST_PROMPT:,} earlier characters"
    prompt = "".join(span.text for line in layout.lines for span in line if span.kind == "prompt")
    assert prompt == "x y " * (LONGEST_PROMPT // 4)
    assert lines_of(layout)[layout.response] == " a"
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
    layout = laid_out(["x" * 76, "y"], 20)
    assert layout.lines_away(0, 1) == 1
    assert layout.lines_away(1, -1) == 0


def test_a_place_between_tokens_belongs_to_none() -> None:
    layout = laid_out(["ab", "</s>"], completion="ab", truncated=False)
    assert [layout.token_at(0, column) for column in range(10)] == [0, 0, None, None, None, 1, 1, 1, 1, None]
    assert layout.token_at(7, 0) is None
