"""Lines of text with roles, and the widget that turns the roles into the theme's colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.segment import Segment
from textual.content import Content
from textual.strip import Strip
from textual.widget import Widget

from workbench.text import visible

Piece = tuple[str, str]  # text, and its role: the part of a component class after `drawn--`
Line = list[Piece]

OVERLAYS = 5  # other runs that a chart can show beside its own
ROLES = (
    "text",
    "strong",
    "muted",
    "axis",
    "series",
    "ema",
    "target",
    "missing",
    "alert",
    "cursor",
    "selected",
    *(f"run-{number}" for number in range(1, OVERLAYS + 1)),
)


def component_classes(*roles: str) -> set[str]:
    """Return the component classes of a widget that draws in `roles`.

    Textual looks up the styles of each whenever the focus moves, so a widget names only those that it needs.
    """
    unknown = {*roles} - {*ROLES}
    assert not unknown, unknown
    return {f"drawn--{role}" for role in roles}


def line_of(cells: Iterable[Piece]) -> Line:
    """Join single characters with roles into a line; neighbours of one role become one piece."""
    return [("".join(text for text, _ in group), role) for role, group in groupby(cells, key=lambda cell: cell[1])]


def plain(line: Line) -> str:
    """Return the text of a line."""
    return "".join(text for text, _ in line)


def rule(text: str, width: int, *, after: Sequence[Piece] = ()) -> Line:
    """Return a heading: `text`, the pieces `after` it, and a line to the end of `width` columns."""
    line: Line = [(f" {text}"[:width], "muted"), *after]
    room = width - len(plain(line)) - 2
    return [*line, (" " + "─" * room, "axis")] if room > 0 else line


def wrapped(pieces: Iterable[Piece], width: int) -> list[Line]:
    """Wrap texts with roles at words into lines of at most `width` columns; control characters become visible."""
    content = Content.assemble(*((visible(text, keep_newlines=True), role) for text, role in pieces))
    return [
        [(line.plain[span.start : span.end], str(span.style)) for span in sorted(line.spans)]
        for line in content.wrap(max(width, 2))
    ]


class Drawn(Widget):
    """A widget that is drawn line by line. It calls `draw` when its content or its size has changed.

    A subclass sets COMPONENT_CLASSES to those of the roles that it draws in.
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._drawn: Sequence[Line] = ()
        self._drawn_size = (-1, -1)

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Return at most `height` lines of at most `width` columns."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Draw again after the content has changed."""
        self._drawn_size = (-1, -1)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        width, height = self.size
        if self._drawn_size != (width, height):
            self._drawn = self.draw(width, height)
            self._drawn_size = (width, height)
        if y >= len(self._drawn):
            return Strip.blank(width, self.rich_style)
        style = self.get_component_rich_style
        segments = [Segment(text, style(f"drawn--{role}")) for text, role in self._drawn[y]]
        return Strip(segments).adjust_cell_length(width, self.rich_style)
