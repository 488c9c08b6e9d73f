"""Rows of the form in one widget, drawn line by line, so that a move of the cursor redraws only two lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from workbench.config.row import Row, row_line

_MARGIN = 2  # lines visible beyond the cursor
_ROLES = ("name", "value", "changed", "muted", "live", "mark", "problem", "locked", "section")


class ConfigRows(ScrollView, can_focus=True, inherit_bindings=False):
    """List of sections and settings with a cursor."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"config-rows--{role}" for role in (*_ROLES, "cursor")}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", show=False, id="config.up", tooltip="The row above"),
        Binding("down", "move(1)", "Down", show=False, id="config.down", tooltip="The row below"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="config.page-up", tooltip="A screenful up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="config.page-down", tooltip="A screenful down"),
        Binding("home", "end(0)", "First", show=False, id="config.first", tooltip="The first row"),
        Binding("end", "end(-1)", "Last", show=False, id="config.last", tooltip="The last row"),
        Binding("enter", "choose", "edit", id="config.edit", tooltip="Edit the value, or fold the section"),
        Binding("right,plus", "step(1)", "more", show=False, id="config.more", tooltip="The next value up; unfold"),
        Binding("left,minus", "step(-1)", "less", show=False, id="config.less", tooltip="The next value down; fold"),
    ]

    class Moved(Message):
        """The cursor has moved to another row."""

    class Chosen(Message):
        """Request to edit or fold the row under the cursor."""

    class Stepped(Message):
        """Request to step the value under the cursor up (direction 1) or down (-1)."""

        def __init__(self, direction: int) -> None:
            super().__init__()
            self.direction = direction

    class Scrolled(Message):
        """The rows have scrolled to other lines."""

        can_replace_previous = True

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, ConfigRows.Scrolled)

    def __init__(self) -> None:
        super().__init__()
        self._rows: Sequence[Row] = ()
        self._cursor = 0

    @property
    def row(self) -> Row | None:
        """Row under the cursor; None if there are no rows."""
        return self._rows[self._cursor] if self._rows else None

    @property
    def line(self) -> int:
        """Line of this widget with the cursor, from 0."""
        return self._cursor - self.scroll_offset.y

    def show(self, rows: Sequence[Row]) -> None:
        """Show other rows; the cursor stays on its key, or near its place."""
        key = self.row.key if self.row else None
        same_place = [place for place, row in enumerate(rows) if row.key == key]
        self._rows = rows
        self._cursor = same_place[0] if same_place else max(min(self._cursor, len(rows) - 1), 0)
        self._lay_out()

    def go_to(self, key: str) -> bool:
        """Move the cursor to the row of `key`; return False if there is none."""
        for place, row in enumerate(self._rows):
            if row.key == key:
                self._move_to(place)
                return True
        return False

    def action_move(self, by: int) -> None:
        self._move_to(self._cursor + by)

    def action_page(self, by: int) -> None:
        self._move_to(self._cursor + by * max(self.size.height - 1, 1))

    def action_end(self, place: int) -> None:
        self._move_to(place % max(len(self._rows), 1))

    def action_choose(self) -> None:
        self.post_message(self.Chosen())

    def action_step(self, direction: int) -> None:
        self.post_message(self.Stepped(direction))

    def on_click(self, event: events.Click) -> None:
        place = event.y + self.scroll_offset.y
        if place < len(self._rows):
            again = place == self._cursor
            self._move_to(place)
            if again or event.x < 2:
                self.post_message(self.Chosen())

    def on_resize(self) -> None:
        self._lay_out()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.post_message(self.Scrolled())

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        place = y + self.scroll_offset.y
        if place >= len(self._rows):
            text = "  nothing is called or explained like that" if y == 0 and not self._rows else ""
            return Strip([Segment(text, self._style("muted"))]).adjust_cell_length(width, self.rich_style)
        pieces = row_line(self._rows[place], width)
        if place == self._cursor:
            cursor = self._style("cursor")
            return Strip([Segment(text, cursor) for text, _ in pieces]).adjust_cell_length(width, cursor)
        strip = Strip([Segment(text, self._style(role)) for text, role in pieces])
        return strip.adjust_cell_length(width, self.rich_style)

    def _style(self, role: str) -> Style:
        return self.get_component_rich_style(f"config-rows--{role}")

    def _move_to(self, place: int) -> None:
        place = max(min(place, len(self._rows) - 1), 0)
        if place != self._cursor:
            for line in (self._cursor, place):
                self.refresh_line(line - self.scroll_offset.y)
            self._cursor = place
            self._scroll_to_cursor()
            self.post_message(self.Moved())

    def _lay_out(self) -> None:
        self.virtual_size = Size(self.scrollable_content_region.width, len(self._rows))
        self._scroll_to_cursor()
        self.refresh()

    def _scroll_to_cursor(self) -> None:
        seen, top = self.size.height, self.scroll_offset.y
        if seen < 1:
            return
        margin = min(_MARGIN, max((seen - 1) // 2, 0))
        lowest = min(self._cursor + margin, len(self._rows) - 1) + 1 - seen
        wanted = min(max(top, lowest), max(self._cursor - margin, 0))
        if wanted != top:
            self.scroll_to(y=wanted, animate=False, force=True)
