"""Lists with a cursor, drawn line by line: lines out of view cost nothing, and a move redraws two items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from rich.cells import set_cell_size
from textual import events, on
from textual.binding import BindingType
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.widget import Widget
from textual.widgets import Input

from workbench.kit.drawing import SelectableLines
from workbench.kit.keys import hidden_key
from workbench.text import Line, Piece, WrappedLine

_GUTTER = 2

Item = TypeVar("Item")


def cursor_bindings(area: str, item: str) -> list[BindingType]:
    """Return the keys that move the cursor. area: of the ids, as in `runs.up`. item: what the help calls an item."""
    return [
        hidden_key("up", "move(-1)", "up", f"{area}.up", f"Go to the {item} above"),
        hidden_key("down", "move(1)", "down", f"{area}.down", f"Go to the {item} below"),
        hidden_key("pageup", "page(-1)", "page up", f"{area}.page-up", "Go up a page"),
        hidden_key("pagedown", "page(1)", "page down", f"{area}.page-down", "Go down a page"),
        hidden_key("home", "move_to(0)", "first", f"{area}.first", f"Go to the first {item}"),
        hidden_key("end", "move_to(-1)", "last", f"{area}.last", f"Go to the last {item}"),
    ]


class CursorList(SelectableLines, ScrollView, Generic[Item], can_focus=True, inherit_bindings=False):
    """A list of items of one height, with a cursor. A subclass implements `item_line` and binds keys to the actions.

    Among its roles are `cursor` and `MESSAGE_ROLE`.
    """

    ITEM_HEIGHT: ClassVar[int] = 1
    """Lines of an item; of several lines, the last one is empty."""
    HEADER_HEIGHT: ClassVar[int] = 0
    """Lines above the items, which do not scroll."""
    CLICKS: ClassVar[int] = 2
    """Clicks that open an item."""
    MARGIN: ClassVar[int] = 0
    """Lines that stay visible beyond the cursor."""
    MESSAGE_ROLE: ClassVar[str] = "muted"
    """Role of the message of an empty list."""

    cursor: reactive[int] = reactive(0, repaint=False)

    class Moved(Message):
        """Posted when the cursor has moved to another item."""

    @dataclass
    class Left(Message):
        """Posted when a key would move the cursor beyond an end of the list: the last for a positive `by`."""

        by: int

    class Opened(Message):
        """Posted when an item is clicked as often as `CLICKS` says."""

    items: Sequence[Item] = ()
    _message = ""  # shown when there are no items

    @property
    def selected(self) -> Item | None:
        """Item under the cursor; None in an empty list."""
        return self.items[self.cursor] if self.items else None

    def item_line(self, index: int, line: int, width: int) -> Sequence[Piece]:
        """Return one line of the item at `index`, at most `width` columns."""
        raise NotImplementedError

    def header_line(self, width: int) -> Line:
        """Return the line above the items."""
        return []

    def lay_out(self) -> None:
        """Update the layout after the items or the size have changed."""
        height = self.HEADER_HEIGHT + len(self.items) * self.ITEM_HEIGHT
        self.virtual_size = Size(self.scrollable_content_region.width, height)
        self._scroll_to_cursor()
        self.refresh()

    on_resize = lay_out

    def put_cursor(self, index: int) -> None:
        """Set the cursor without a message, because the items have changed; then lay them out."""
        self.set_reactive(CursorList.cursor, self.validate_cursor(index))
        self.lay_out()

    def validate_cursor(self, cursor: int) -> int:
        return max(min(cursor, len(self.items) - 1), 0)

    def watch_cursor(self, before: int, after: int) -> None:
        for index in (before, after):
            self.refresh_lines(self.HEADER_HEIGHT + index * self.ITEM_HEIGHT, self.ITEM_HEIGHT)
        self._scroll_to_cursor()
        self.post_message(self.Moved())

    def action_move(self, by: int) -> None:
        if not 0 <= self.cursor + by < len(self.items):
            self.post_message(self.Left(by))
        self.cursor += by

    def action_page(self, by: int) -> None:
        self.cursor += by * max((self.size.height - self.HEADER_HEIGHT) // self.ITEM_HEIGHT, 1)

    def action_move_to(self, place: int) -> None:
        self.cursor = place % max(len(self.items), 1)

    def text_select_all(self) -> None:
        """Select nothing: a double click opens an item."""

    def on_click(self, event: events.Click) -> None:
        if self.text_selection is not None or event.y < self.HEADER_HEIGHT:  # the end of a selection
            return
        index = (event.y - self.HEADER_HEIGHT + self.scroll_offset.y) // self.ITEM_HEIGHT
        if index < len(self.items):
            again = index == self.cursor
            self.cursor = index
            self.click_item(event, again=again)

    def click_item(self, event: events.Click, *, again: bool) -> None:
        """Act on a click on the item under the cursor. again: the cursor was there before."""
        if event.chain >= self.CLICKS:
            self.post_message(self.Opened())

    def line_at(self, y: int) -> int:
        return y if y < self.HEADER_HEIGHT else y + self.scroll_offset.y

    def content_line(self, index: int) -> Sequence[Piece] | None:
        width = self.scrollable_content_region.width
        if index < self.HEADER_HEIGHT:
            return self.header_line(width)
        index -= self.HEADER_HEIGHT
        if not self.items:
            lines = Content(self._message).wrap(max(width, 1))
            return [(lines[index].plain, self.MESSAGE_ROLE)] if index < len(lines) else None
        item, line = divmod(index, self.ITEM_HEIGHT)
        return self.item_line(item, line, width) if item < len(self.items) else None

    def _scroll_to_cursor(self) -> None:
        seen, top, first = self.size.height - self.HEADER_HEIGHT, self.scroll_offset.y, self.cursor * self.ITEM_HEIGHT
        if seen < 1:
            return
        margin = min(self.MARGIN, (seen - 1) // 2)
        last = first + max(self.ITEM_HEIGHT - 1, 1) + margin
        lowest = min(last, len(self.items) * self.ITEM_HEIGHT) - seen
        wanted = min(max(top, lowest), max(first - margin, 0))
        if wanted != top:
            self.scroll_to(y=wanted, animate=False, force=True)


class BlockList(CursorList[Item]):
    """A list whose items have several lines of text. A subclass implements `block` and sets LINES and ITEM_HEIGHT.

    Its component classes are those of the roles in `LINES`, and prompt, for the message of an empty list; bar, for the
    mark left of the item under the cursor; cursor, for the first line of that item.
    """

    TEXT_FROM = _GUTTER
    LINES: ClassVar[tuple[str, ...]]  # the role of each line of a block, "" where it has none; the last line is empty
    MESSAGE_ROLE = "prompt"

    def block(self, index: int, width: int) -> Sequence[str]:
        """Return the lines of the item at `index`, as many as `LINES` has, each at most `width` columns."""
        raise NotImplementedError

    def item_line(self, index: int, line: int, width: int) -> Sequence[Piece]:
        text = self.block(index, max(width - _GUTTER, 1))[line]
        here = index == self.cursor and line < self.ITEM_HEIGHT - 1
        role = "cursor" if here and line == 0 else self.LINES[line]
        drawn = WrappedLine([("▌" if here else " ", "bar"), (" ", ""), (text, role)])
        goes_on = line + 2 < self.ITEM_HEIGHT and self.LINES[line] == self.LINES[line + 1]  # one text in two lines
        drawn.lost = " " if goes_on else "\n"
        return drawn


def under_cursor(pieces: Sequence[Piece], width: int) -> Line:
    """Return a line as it is drawn under the cursor, to the end of its `width` columns."""
    text = "".join(text for text, _ in pieces)
    return [(set_cell_size(text, width), "cursor")]


class FilterField(Input):
    """A field above a list, hidden until it is opened; a filter that is active stays in sight.

    The pane reacts to `Input.Changed`. Enter goes back to the list.
    """

    DEFAULT_CSS = "FilterField { dock: top; }"

    def __init__(self, placeholder: str) -> None:
        super().__init__(placeholder=placeholder, compact=True)
        self.display = False

    def allow_focus(self) -> bool:
        return bool(self.display)

    def open(self) -> None:
        """Show the field, and type into it."""
        self.display = True
        self.focus()

    def clear_filter(self) -> None:
        """Remove the filter, and go back to the list."""
        self.value = ""
        self.leave()

    @on(Input.Submitted)
    def leave(self) -> None:
        """Go back to the list."""
        if self.parent is not None:
            self.parent.query("CursorList, OptionList").last(Widget).focus()
        self.display = bool(self.value)
