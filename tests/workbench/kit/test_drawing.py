"""Drawn text: it wraps, is cut, selected with the mouse and compared; sparklines."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.segment import Segment
from textual.app import App, ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.pilot import Pilot
from textual.widget import Widget

from workbench.kit.banner import Banner
from workbench.kit.cursor_list import BlockList
from workbench.kit.drawing import CutText, Drawn, ScrolledLines, cut, rule, wrapped
from workbench.kit.glyphs import sparkline
from workbench.kit.pane import MountedWhole
from workbench.kit.theming import ThemedApp
from workbench.kit.word_diff import Part, word_diff
from workbench.text import Line, plain

WORDS = st.lists(st.text("abc日é", min_size=1, max_size=12), max_size=40).map(" ".join)


@given(text=WORDS, width=st.integers(1, 50), height=st.integers(1, 8))
def test_a_text_fits_its_space_and_shows_where_it_was_cut(text: str, width: int, height: int) -> None:
    lines = cut(Content(text), width, height).plain.split("\n")
    assert len(lines) <= height
    assert all(Content(line).cell_length <= width for line in lines)
    whole = "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert whole or lines[-1].endswith("…")


def test_colours_and_empty_lines_stay() -> None:
    shown = cut(Content.assemble("one\n\n", ("two three", "bold")), 5, 9)
    assert shown.plain == "one\n\ntwo\nthree"
    assert [shown.plain[span.start : span.end] for span in shown.spans] == ["two", "three"]


@pytest.mark.parametrize(
    ("width", "drawn"),
    [(0, ""), (8, " accura…"), (9, " accuracy"), (20, " accuracy · × 2 not…"), (29, " accuracy · × 2 not finite ─")],
)
def test_a_heading_shows_where_it_was_cut(width: int, drawn: str) -> None:
    assert plain(rule("accuracy", width, missing=2)) == drawn


class Bench(App[None]):
    CSS = "#auto { height: auto; max-height: 2; }"

    def compose(self) -> ComposeResult:
        yield CutText(most=2, id="auto")


def drawn(text: CutText) -> list[str]:
    return [text.render_line(y).text.rstrip() for y in range(text.size.height)]


async def test_a_text_is_cut_again_for_another_width() -> None:
    app = Bench()
    async with app.run_test(size=(20, 10)) as pilot:
        text = app.query_one("#auto", CutText)
        text.update("score 0.52, -0.80 to 0.97   KL 9.3 nats   by score")
        await pilot.pause()
        assert drawn(text) == ["score 0.52, -0.80 to", "0.97   KL 9.3 nats …"]
        await pilot.resize_terminal(80, 10)
        await pilot.pause()
        assert drawn(text) == ["score 0.52, -0.80 to 0.97   KL 9.3 nats   by score"]


def test_a_sparkline_goes_from_the_lowest_bar_to_the_highest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([5, 0, 10], 2) == "▁█"


def test_a_flat_series_is_a_flat_line_and_values_that_are_not_finite_are_gaps() -> None:
    assert sparkline([1.0, 1.0 + 1e-9, 1.0], 8) == "▄▄▄"
    assert sparkline([0.0, math.nan, 1.0, math.inf], 8) == "▁ █ "
    assert sparkline([math.nan], 8) == " "
    assert sparkline([], 8) == sparkline([1.0], 0) == ""


TEXT = "The band  played on 日本語 until the morning came.\nThen it stopped: anunbreakablylongwordofmanyletters"


class Picture(Drawn):
    DEFAULT_CSS = "Picture { height: 3; }"

    def on_mount(self) -> None:
        self.show(lambda width, height: [[("reward ", ""), ("0.5", "")], [("KL ", ""), ("日本 4.1", "")]])


class Story(ScrolledLines):
    CSS_NAME = "story"
    COMPONENT_CLASSES: ClassVar[set[str]] = {"story--text"}
    DEFAULT_CSS = "Story { height: 5; scrollbar-size-vertical: 1; }"

    def wrap(self, width: int) -> Sequence[Line]:
        return wrapped([(TEXT, "text")], width)


class Blocks(BlockList[str]):
    CSS_NAME = "blocks"
    DEFAULT_CSS = "Blocks { height: 6; scrollbar-size-vertical: 1; }"
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"blocks--{role}" for role in ("facts", "bar", "cursor", "prompt")}
    HEADER_HEIGHT = 1
    LINES = ("facts", "", "", "")
    ITEM_HEIGHT = 4
    items = tuple("abcdefgh")

    def header_line(self, width: int) -> Line:
        return [("  heading", "")]

    def block(self, index: int, width: int) -> list[str]:
        name = self.items[index]
        return [f"facts {name}", f"{name} begins", f"and {name} ends", ""]


class Area(MountedWhole, Vertical):
    def compose(self) -> ComposeResult:
        yield Picture()
        yield Story()
        yield Blocks()


class Host(ThemedApp[None]):
    def compose(self) -> ComposeResult:
        yield Area()


async def drag(pilot: Pilot[None], widget: Widget, start: tuple[int, int], end: tuple[int, int]) -> str:
    """Drag from one cell of a widget to another, and return the text that is selected."""
    await pilot.mouse_down(widget, offset=start)
    await pilot.hover(widget, offset=end)
    await pilot.mouse_up(widget, offset=end)
    return pilot.app.screen.get_selected_text() or ""


def marked(widget: Widget, y: int) -> str:
    """Return the text of row `y` that is drawn as selected."""
    plain = widget.app.screen.get_component_rich_style("screen--selection")
    strip = widget.render_line(y)
    return "".join(text for text, style, _ in strip if style and style.bgcolor == plain.bgcolor)


async def test_a_picture_is_selected_by_characters_and_copied() -> None:
    async with Host().run_test(size=(24, 20)) as pilot:
        picture = pilot.app.query_one(Picture)
        assert await drag(pilot, picture, (7, 0), (3, 1)) == "0.5\nKL 日"
        assert (marked(picture, 0), marked(picture, 1)) == ("0.5", "KL 日")
        assert "".join(segment.text for segment in picture.render_line(1)).rstrip() == "KL 日本 4.1"
        pilot.app.query_one(Area).action_copy_text()
        assert pilot.app.clipboard == "0.5\nKL 日"
        await pilot.pause()
        assert "Copied the selected text" in str(pilot.app.query_one(Banner).render())
        await pilot.click(Picture, offset=(1, 1))
        assert not pilot.app.screen.selections, "a click clears it"


async def test_wrapped_lines_are_copied_as_one_also_where_they_are_scrolled() -> None:
    async with Host().run_test(size=(24, 20)) as pilot:
        story = pilot.app.query_one(Story)
        assert await drag(pilot, story, (4, 0), (6, 3)) == TEXT[4 : TEXT.index(" stopped")]
        story.text_select_all()
        assert pilot.app.screen.get_selected_text() == TEXT
        story.scroll_to(y=1, animate=False)
        await pilot.pause()
        assert story.scroll_offset.y == 1
        assert await drag(pilot, story, (0, 0), (15, 0)) == "日本語 until the"


async def test_lists_are_copied_without_the_mark_of_the_cursor_and_stay_where_they_are() -> None:
    async with Host().run_test(size=(24, 20)) as pilot:
        blocks = pilot.app.query_one(Blocks)
        blocks.cursor = 7
        await pilot.pause()
        top = blocks.scroll_offset.y
        assert top > 4
        seen = [blocks.render_line(y).text[2:].rstrip() for y in range(6)]
        assert seen[0] == "heading"
        first = next(y for y in range(1, 4) if seen[y].startswith("facts"))
        name = seen[first][-1]
        selected = await drag(pilot, blocks, (0, first), (20, first + 2))
        assert selected == f"facts {name}\n{name} begins and {name} ends"
        assert blocks.cursor == 7, "the end of a selection is not a click on an item"
        await pilot.click(Blocks, offset=(4, first), times=2)
        assert not pilot.app.screen.selections


async def test_painting_a_selection_keeps_the_width_and_carries_no_places(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Host().run_test(size=(24, 20)) as pilot:
        story = pilot.app.query_one(Story)
        await drag(pilot, story, (3, 0), (9, 3))
        painted = pilot.app.screen._compositor.render_strips()
        assert {strip.cell_length for strip in painted} == {24}
        segments: list[Segment] = [segment for strip in painted for segment in strip]
        assert not any("offset" in segment.style.meta for segment in segments if segment.style)
    monkeypatch.setenv("NO_COLOR", "1")
    async with Host().run_test(size=(24, 20)) as pilot:
        picture = pilot.app.query_one(Picture)
        await drag(pilot, picture, (0, 0), (5, 0))
        reverse = [text for text, style, _ in picture.render_line(0) if style and style.reverse]
        assert "".join(reverse) == "reward"


TEXTS = st.text() | st.lists(st.sampled_from(["joy", "the", " ", "\n\n", ".", "日", "本", "e\u0301", "🎉"])).map(
    "".join
)


def old_and_new(parts: list[Part]) -> tuple[str, ...]:
    return tuple("".join(text for kind, text in parts if kind in ("same", one)) for one in ("gone", "new"))


@given(TEXTS, TEXTS)
def test_the_parts_joined_are_the_two_texts(old: str, new: str) -> None:
    parts = word_diff(old, new)
    assert old_and_new(parts) == (old, new)
    assert all(text for _, text in parts)
    assert all(one[0] != other[0] for one, other in itertools.pairwise(parts)), "neighbours differ in kind"


@given(TEXTS)
def test_a_text_is_the_same_as_itself(text: str) -> None:
    assert word_diff(text, text) == ([("same", text)] if text else [])


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("a sad day", "a glad day", [("same", "a "), ("gone", "sad"), ("new", "glad"), ("same", " day")]),
        ("joy", "joy!", [("same", "joy"), ("new", "!")]),
        ("one two", "two", [("gone", "one "), ("same", "two")]),
        ("one\ntwo", "one two", [("same", "one"), ("gone", "\n"), ("new", " "), ("same", "two")]),
        ("空は青い", "空は赤い", [("same", "空は"), ("gone", "青"), ("new", "赤"), ("same", "い")]),
        ("e\u0301", "e", [("gone", "e\u0301"), ("new", "e")]),
        ("", "x", [("new", "x")]),
        ("a b", "c d", [("gone", "a b"), ("new", "c d")]),
    ],
)
def test_words_punctuation_spaces_and_ideograms_are_compared_whole(
    old: str, new: str, parts: list[tuple[str, str]]
) -> None:
    assert word_diff(old, new) == parts


def test_long_texts_match_by_their_rarer_words() -> None:
    rng = random.Random(3)
    words = [f"w{number}" for number in range(2000)]
    text = rng.choices(words, [1 / (1 + number) for number in range(2000)], k=4000)
    other = text.copy()
    changed = range(100, 4000, 400)
    for place in changed:
        other[place] = f"new{place}"
    other = ["start", *other, "end"]  # otherwise all but the middle would count as equal ends
    diff = word_diff(" ".join(["begin", *text, "over"]), " ".join(other))
    assert {text.strip() for kind, text in diff if kind == "new"} == {
        "start",
        "end",
        *(f"new{place}" for place in changed),
    }


def test_texts_of_few_words_over_and_over_are_compared_at_once_by_their_ends() -> None:
    rng = random.Random(3)
    old, new = (" ".join(rng.choices(["the", "a"], k=5000)) for _ in range(2))
    diff = word_diff(f"so {old} x", f"so {new} y")
    assert diff[0][1].startswith("so ")
    assert old_and_new(diff) == (f"so {old} x", f"so {new} y")
    assert len(diff) < 10
