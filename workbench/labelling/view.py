"""Widget that shows the item to judge, drawn line by line and scrolled as a whole."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from workbench.kit.drawing import Line, Piece, wrapped
from workbench.labelling.layout import Layout, Style, lay_out, with_note
from workbench.labelling.shown import Shown

_ROLES = ("rule", "heading", "role", "text", "differs", "strong", "emphasis", "struck", "code", "muted")
_RULES = 2  # lines of a screenful that show the position


class LabelView(ScrollView, can_focus=True, inherit_bindings=False):
    """View of a prompt and its completions, or of a message if there are none.

    If they are longer than the screen, the first line shows which text this is and how much is above, and the last line
    how much is below.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"label-view--{role}" for role in _ROLES}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll_up", "Up", show=False, id="label.up", tooltip="A line up, on both sides"),
        Binding("down", "scroll_down", "Down", show=False, id="label.down", tooltip="A line down, on both sides"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="label.page-up", tooltip="A screenful up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="label.page-down", tooltip="A screenful down"),
        Binding("home", "scroll_home", "Start", show=False, id="label.start-of-text", tooltip="The prompt's start"),
        Binding("end", "scroll_end", "End", show=False, id="label.end-of-text", tooltip="The end of the longest"),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._shown: Shown | None = None
        self._style = Style()
        self._message: Sequence[Piece] = ()
        self._layout = Layout([], [], [])
        self._start = 0  # the first visible line when the item was shown

    def show(self, shown: Shown, style: Style) -> None:
        """Show an item from the start of its prompt, or from the end of a long prompt."""
        self._shown, self._style = shown, style
        self._lay_out(from_start=True)

    def restyle(self, style: Style) -> None:
        """Draw the item's texts in another style; the scroll position stays."""
        self._style = style
        self._lay_out()

    def say(self, message: Sequence[Piece]) -> None:
        """Show a message instead of an item, with the same roles."""
        self._shown, self._message = None, message
        self._lay_out(from_start=True)

    def on_resize(self) -> None:
        self._lay_out()

    def action_page(self, by: int) -> None:
        height = self.scrollable_content_region.height - _RULES
        self.scroll_relative(y=by * max(height, 1), animate=False, force=True)

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        style = self.get_component_rich_style
        segments = [Segment(text, style(f"label-view--{role}")) for text, role in self._line(y)]
        return Strip(segments).adjust_cell_length(width, self.rich_style)

    def _line(self, y: int) -> Line:
        """Return line `y` of the screen: a line of the item, or a rule that shows the position."""
        lines, headings, end = self._layout
        above, height = self.scroll_offset.y, self.scrollable_content_region.height
        index = above + y
        if index >= len(lines):
            return []
        if self._shown is None:
            return lines[index]
        if y == 0 and above:
            heading = bisect_right(headings, index)
            return with_note(lines[headings[heading - 1] if heading else 0], f"↑ {above}")
        if y == height - 1 and index < len(lines) - 1:
            return with_note(end, f"↓ {len(lines) - index} more lines")
        return lines[index]

    def _lay_out(self, *, from_start: bool = False) -> None:
        """Lay out everything for the current size; an item that was not scrolled yet stays at its start."""
        width, height = self.scrollable_content_region.size
        from_start = from_start or self.scroll_offset.y == self._start
        shown = self._shown
        self._layout = lay_out(shown, width, height, self._style) if shown else self._message_lines(width, height)
        lines, headings, _ = self._layout
        self.virtual_size = Size(width, len(lines))
        self.refresh()
        if from_start:
            self._start = 0 if len(lines) <= height or not headings else max(headings[0] - height // 3, 0)
            self.scroll_to(y=self._start, animate=False, force=True)

    def _message_lines(self, width: int, height: int) -> Layout:
        said = wrapped(self._message, min(max(width - 4, 2), 72))
        margin: Line = [(" " * max((width - 72) // 2, 2), "text")]
        above: list[Line] = [[]] * max((height - len(said)) // 3, 0)
        return Layout([*above, *([*margin, *line] for line in said)], [], [])
