"""Text selection with the mouse in widgets that draw their own lines: Textual needs to know what lies where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.actions import SkipAction
from textual.geometry import Region
from textual.screen import Screen
from textual.selection import Selection
from textual.strip import Strip

from workbench.kit.banner import copied

if TYPE_CHECKING:
    from textual.widget import Widget
else:
    Widget = object  # Textual takes the styles of the first base that is a widget: not of this mixin


class SelectableLines(Widget):
    """A widget of drawn lines whose text can be selected. A subclass implements `line_strip` and `text_of_line`.

    A line is addressed by its place in the content, which `line_at` gives for a row of the widget.
    """

    TEXT_FROM: ClassVar[int] = 0
    """Columns at the left that are never copied, such as the mark of the cursor."""

    _is_painting = False

    def line_strip(self, y: int) -> Strip:
        """Draw row `y` of the widget."""
        raise NotImplementedError

    def line_at(self, y: int) -> int:
        """Return the line of the content that is shown in row `y` of the widget."""
        return y + self.scroll_offset.y

    def text_of_line(self, index: int) -> tuple[str, str] | None:
        """Return the text of a line of the content, and what follows it in a copy; None after the last line.

        What follows is a newline, but the characters that wrapping has removed where the line was wrapped.
        """
        raise NotImplementedError

    def render_lines(self, crop: Region) -> list[Strip]:
        self._is_painting = True
        try:
            return super().render_lines(crop)
        finally:
            self._is_painting = False

    def render_line(self, y: int) -> Strip:
        """Draw row `y` with the selection marked.

        Textual also calls this for the character under the mouse, and only then the strip carries places: they take
        longer than drawing does.
        """
        strip, index, selection = self.line_strip(y), self.line_at(y), self.text_selection
        if selection is not None and (span := selection.get_span(index)) is not None:
            strip = self._with_selection(strip, *span)
        return strip if self._is_painting else strip.apply_offsets(0, index)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        start, end = selection
        index, copied = start.y if start else 0, list[str]()
        while (end is None or index <= end.y) and (found := self.text_of_line(index)) is not None:
            text, following = found
            first = start.x if start and index == start.y else 0
            last = end.x if end and index == end.y else len(text)
            copied += [text[max(first, self.TEXT_FROM) : last].rstrip(), following]
            index += 1
        return "".join(copied).rstrip(), "\n"

    def _with_selection(self, strip: Strip, start: int, end: int) -> Strip:
        """Return `strip` with the characters from `start` to `end` (-1: the last that is not a space) marked."""
        text = strip.text
        first = cell_len(text[: max(start, self.TEXT_FROM)])
        last = cell_len(text.rstrip() if end < 0 else text[:end])
        if last <= first:
            return strip
        style = Style(reverse=True)
        if not self.app.no_color:
            style = self.screen.get_component_rich_style("screen--selection") + Style(reverse=False)
        marked = [Segment(segment.text, (segment.style or Style.null()) + style) for segment in strip.crop(first, last)]
        return Strip.join([strip.crop(0, first), Strip(marked), strip.crop(last)])


def copy_selection(screen: Screen[Any]) -> None:
    """Copy the selected text of `screen` and confirm it; without one, leave the key to others."""
    text = screen.get_selected_text()
    if not text:
        raise SkipAction
    screen.app.copy_to_clipboard(text)
    copied(screen, "the selected text")
