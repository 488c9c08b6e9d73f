"""Text is selected with the mouse in every kind of drawn widget, and copied as it reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pytest
from rich.segment import Segment
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.pilot import Pilot
from textual.widget import Widget

from workbench.kit.banner import Banner
from workbench.kit.cursor_list import BlockList
from workbench.kit.drawing import Drawn, ScrolledLines, wrapped
from workbench.kit.pane import MountedWhole
from workbench.kit.theming import ThemedApp
from workbench.text import Line

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
