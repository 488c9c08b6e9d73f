"""Widget that shows the item to judge, drawn line by line and scrolled as a whole."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType

from workbench.kit.drawing import Line, Piece, ScrolledLines, wrapped
from workbench.labelling.item_layout import Layout, Style, lay_out, with_note
from workbench.labelling.item_texts import ItemTexts

_ROLES = ("rule", "heading", "role", "text", "differs", "strong", "emphasis", "struck", "code", "muted")
_RULES = 2  # lines of a screenful that show the position


class LabelView(ScrolledLines):
    """View of a prompt and its completions, or of a message if there are none.

    If they are longer than the screen, the first line shows which text this is and how much is above, and the last line
    how much is below.
    """

    CSS_NAME = "label-view"
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"label-view--{role}" for role in _ROLES}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll_up", "Up", show=False, id="label.up", tooltip="A line up, on both sides"),
        Binding("down", "scroll_down", "Down", show=False, id="label.down", tooltip="A line down, on both sides"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="label.page-up", tooltip="A screenful up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="label.page-down", tooltip="A screenful down"),
        Binding("home", "scroll_home", "Start", show=False, id="label.start-of-text", tooltip="Start of the prompt"),
        Binding("end", "scroll_end", "End", show=False, id="label.end-of-text", tooltip="End of the longest text"),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._texts: ItemTexts | None = None
        self._style = Style()
        self._message: Sequence[Piece] = ()
        self._layout = Layout([], [], [])
        self._start = 0  # the first visible line when the item was shown

    def show(self, texts: ItemTexts, style: Style) -> None:
        """Show an item from the start of its prompt, or from the end of a long prompt."""
        self._texts, self._style = texts, style
        self._lay_out(from_start=True)

    def restyle(self, style: Style) -> None:
        """Draw the item's texts in another style; the scroll position stays."""
        self._style = style
        self.lay_out()

    def say(self, message: Sequence[Piece]) -> None:
        """Show a message instead of an item, with the same roles."""
        self._texts, self._message = None, message
        self._lay_out(from_start=True)

    def action_page(self, by: int) -> None:
        height = self.scrollable_content_region.height - _RULES
        self.scroll_relative(y=by * max(height, 1), animate=False, force=True)

    def wrap(self, width: int) -> Sequence[Line]:
        height = self.scrollable_content_region.height
        texts = self._texts
        self._layout = lay_out(texts, width, height, self._style) if texts else self._message_lines(width, height)
        return self._layout.lines

    def line(self, y: int) -> Line | None:
        """Return line `y` of the screen: a line of the item, or a rule that shows the position."""
        lines, headings, end = self._layout
        above, height = self.scroll_offset.y, self.scrollable_content_region.height
        index = above + y
        if self._texts is None or index >= len(lines):
            return super().line(y)
        if y == 0 and above:
            heading = bisect_right(headings, index)
            return with_note(lines[headings[heading - 1] if heading else 0], f"↑ {above}")
        if y == height - 1 and index < len(lines) - 1:
            return with_note(end, f"↓ {len(lines) - index} more lines")
        return lines[index]

    def lay_out(self) -> None:
        self._lay_out(from_start=False)

    def _lay_out(self, *, from_start: bool) -> None:
        """Lay out everything for the current size; an item that was not scrolled yet stays at its start."""
        from_start = from_start or self.scroll_offset.y == self._start
        super().lay_out()
        lines, headings, _ = self._layout
        height = self.scrollable_content_region.height
        if from_start:
            self._start = 0 if len(lines) <= height or not headings else max(headings[0] - height // 3, 0)
            self.scroll_to(y=self._start, animate=False, force=True)

    def _message_lines(self, width: int, height: int) -> Layout:
        lines = wrapped(self._message, min(max(width - 4, 2), 72))
        margin: Line = [(" " * max((width - 72) // 2, 2), "text")]
        above: list[Line] = [[]] * max((height - len(lines)) // 3, 0)
        return Layout([*above, *([*margin, *line] for line in lines)], [], [])
