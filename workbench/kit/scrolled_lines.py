"""Scrollable lines of text with roles, wrapped to the available width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from workbench.kit.drawing import Line


class ScrolledLines(ScrollView, can_focus=True, inherit_bindings=False):
    """A scrollable text. A subclass implements `wrap` and binds keys to scrolling.

    Its component classes are `CSS_NAME`-- and each of the roles in its lines.
    """

    CSS_NAME: ClassVar[str]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: Sequence[Line] = ()

    def wrap(self, width: int) -> Sequence[Line]:
        """Return the whole text in lines of at most `width` columns."""
        raise NotImplementedError

    def lay_out(self) -> None:
        """Wrap the text again after it or the size has changed."""
        width = self.scrollable_content_region.width
        if width > 0:
            self._lines = self.wrap(width)
            self.virtual_size = Size(width, len(self._lines))
            self.refresh()

    def on_resize(self) -> None:
        self.lay_out()

    def render_line(self, y: int) -> Strip:
        width, index = self.scrollable_content_region.width, y + self.scroll_offset.y
        if index >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        style = self.get_component_rich_style
        segments = [Segment(text, style(f"{self.CSS_NAME}--{role}")) for text, role in self._lines[index]]
        return Strip(segments).adjust_cell_length(width, self.rich_style)
