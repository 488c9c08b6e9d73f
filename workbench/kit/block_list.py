"""A list with a cursor, drawn line by line. All items have the same number of lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

_GUTTER = 2

Item = TypeVar("Item")


class BlockList(ScrollView, Generic[Item], can_focus=True, inherit_bindings=False):
    """A list of items with a cursor. A subclass implements `block`, sets `_items` and binds keys to the actions.

    Its component classes are `CSS_NAME`-- and one of: the roles in `LINES`; prompt, for the message of an empty list;
    bar, for the mark left of the item under the cursor; cursor, for the first line of that item.
    """

    CSS_NAME: ClassVar[str]
    LINES: ClassVar[tuple[str, ...]]  # the role of each line of a block, "" where it has none; the last line is empty

    cursor: reactive[int] = reactive(0)

    class Opened(Message):
        """Posted when an item is double-clicked."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._items: Sequence[Item] = ()
        self._message = ""  # shown when there are no items

    @property
    def selected(self) -> Item | None:
        """Item under the cursor; None in an empty list."""
        return self._items[self.cursor] if self._items else None

    def block(self, index: int, width: int) -> Sequence[str]:
        """Return the lines of the item at `index`, as many as `LINES` has, each at most `width` columns."""
        raise NotImplementedError

    def lay_out(self) -> None:
        """Update the layout after the items or the size have changed."""
        self.virtual_size = Size(self.scrollable_content_region.width, len(self._items) * len(self.LINES))
        self._scroll_to_cursor()
        self.refresh()

    def validate_cursor(self, cursor: int) -> int:
        return max(min(cursor, len(self._items) - 1), 0)

    def watch_cursor(self) -> None:
        self._scroll_to_cursor()
        self.refresh()

    def action_move(self, by: int) -> None:
        self.cursor += by

    def action_page(self, by: int) -> None:
        self.cursor += by * max(self.size.height // len(self.LINES), 1)

    def action_first(self) -> None:
        self.cursor = 0

    def on_resize(self) -> None:
        self.lay_out()

    def on_click(self, event: events.Click) -> None:
        if (index := (event.y + self.scroll_offset.y) // len(self.LINES)) < len(self._items):
            self.cursor = index
            if event.chain == 2:
                self.post_message(self.Opened())

    def render_line(self, y: int) -> Strip:
        width, style = self.scrollable_content_region.width, self.rich_style
        if not self._items:
            lines = Content(self._message).wrap(max(width, 1))
            text = lines[y].plain if y < len(lines) else ""
            return Strip([Segment(text, self._style("prompt"))]).adjust_cell_length(width, style)
        index, line = divmod(y + self.scroll_offset.y, len(self.LINES))
        if index >= len(self._items):
            return Strip.blank(width, style)
        text = self.block(index, max(width - _GUTTER, 1))[line]
        here = index == self.cursor and line < len(self.LINES) - 1
        bar = Segment("▌" if here else " ", self._style("bar"))
        part = self._style("cursor" if here and line == 0 else self.LINES[line])
        return Strip([bar, Segment(" ", style), Segment(text, part)]).adjust_cell_length(width, style)

    def _style(self, role: str) -> Style:
        return self.get_component_rich_style(f"{self.CSS_NAME}--{role}") if role else self.rich_style

    def _scroll_to_cursor(self) -> None:
        block = len(self.LINES)
        seen, top, first = self.size.height, self.scroll_offset.y, self.cursor * block
        if seen < 1:
            return
        wanted = min(max(top, first + block - 1 - seen), first)
        if wanted != top:
            self.scroll_to(y=wanted, animate=False, force=True)
