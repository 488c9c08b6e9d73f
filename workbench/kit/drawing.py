"""Widgets that draw lines of text with roles in the theme's colours, and text cut to its widget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.segment import Segment
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.visual import VisualType
from textual.widget import Widget
from textual.widgets import Static

from workbench.columns import fit_start
from workbench.kit.lines import MISSING, Line, Piece, WrappedLine, following, plain
from workbench.kit.selection import SelectableLines
from workbench.text import visible

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


def rule(text: str, width: int, *, missing: int = 0) -> Line:
    """Return a heading: `text`, how many numbers are `missing` if any, and a line to the end of `width` columns."""
    line: Line = [(fit_start(f" {text}", width), "muted")]
    if missing:
        lost = f" · {MISSING} {missing} not finite"
        line.append((fit_start(lost, width - len(plain(line))), "missing"))
    room = width - len(plain(line)) - 2
    return [*line, (" " + "─" * room, "axis")] if room > 0 else line


def wrapped(pieces: Iterable[Piece], width: int) -> list[Line]:
    """Wrap texts with roles at words into lines of at most `width` columns; control characters become visible."""
    content = Content.assemble(*((visible(text, keep_newlines=True), role) for text, role in pieces))
    lines: list[Line] = []
    for paragraph in content.split("\n", allow_blank=True):
        text, place = paragraph.plain, 0
        for line in paragraph.wrap(max(width, 2)) or [Content()]:
            place = text.find(line.plain, place) + len(line.plain)
            drawn = WrappedLine((line.plain[span.start : span.end], str(span.style)) for span in sorted(line.spans))
            drawn.lost = text[place : len(text) - len(text[place:].lstrip())]
            lines.append(drawn)
        lines[-1] = list(lines[-1])
    return lines


def strip_of(widget: Widget, line: Iterable[Piece], css_name: str, width: int) -> Strip:
    """Return `line` in the colours of `widget`, whose component classes are `css_name`-- and a role."""
    plain_style, style = widget.rich_style, widget.get_component_rich_style
    segments = [Segment(text, style(f"{css_name}--{role}") if role else plain_style) for text, role in line]
    return Strip(segments).adjust_cell_length(width, plain_style)


def text_of(lines: Sequence[Line], index: int) -> tuple[str, str] | None:
    """Return the text of a line and what follows it in a copy; None after the last."""
    return (plain(lines[index]), following(lines[index])) if index < len(lines) else None


class Drawn(SelectableLines, Widget):
    """A widget that is drawn line by line. It calls `draw` when its content or its size has changed.

    A subclass sets COMPONENT_CLASSES to those of the roles that it draws in.
    """

    _drawn: Sequence[Line] = ()
    _drawn_size = (-1, -1)

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Return at most `height` lines of at most `width` columns."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Draw again after the content has changed."""
        self._drawn_size = (-1, -1)
        self.refresh()

    def line_at(self, y: int) -> int:
        return y

    def text_of_line(self, index: int) -> tuple[str, str] | None:
        return text_of(self._drawn, index)

    def line_strip(self, y: int) -> Strip:
        width, height = self.size
        if self._drawn_size != (width, height):
            self._drawn = self.draw(width, height)
            self._drawn_size = (width, height)
        return strip_of(self, self._drawn[y] if y < len(self._drawn) else (), "drawn", width)


_SCROLLING = (  # key, action, description, tooltip
    ("up", "scroll_up", "up", "Scroll up a line"),
    ("down", "scroll_down", "down", "Scroll down a line"),
    ("pageup", "page_up", "page up", "Scroll up a page"),
    ("pagedown", "page_down", "page down", "Scroll down a page"),
    ("home", "scroll_home", "start", "Scroll to the start"),
    ("end", "scroll_end", "end", "Scroll to the end"),
)


def scroll_bindings(
    area: str, names: str = "up down page-up page-down start end", action: str = "{}"
) -> list[BindingType]:
    """Return the keys that scroll a text. area, names: of the ids, as in `ask.up`. action: template for each action."""
    return [
        Binding(key, action.format(how), description, show=False, id=f"{area}.{name}", tooltip=tooltip)
        for name, (key, how, description, tooltip) in zip(names.split(), _SCROLLING, strict=True)
    ]


class ScrolledLines(SelectableLines, ScrollView, can_focus=True, inherit_bindings=False):
    """A scrollable text. A subclass implements `wrap` and binds keys to scrolling.

    Its component classes are `CSS_NAME`-- and each of the roles in its lines.
    """

    CSS_NAME: ClassVar[str]
    _lines: Sequence[Line] = ()

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

    def watch_show_vertical_scrollbar(self) -> None:
        self.call_after_refresh(self.lay_out)  # the bar takes columns from the text

    @property
    def text(self) -> str:
        """The whole text as wrapped now, for the clipboard."""
        return "".join(plain(line).rstrip() + following(line) for line in self._lines)

    def line(self, y: int) -> Line | None:
        """Return line `y` of the widget; None below the text."""
        index = y + self.scroll_offset.y
        return self._lines[index] if index < len(self._lines) else None

    def text_of_line(self, index: int) -> tuple[str, str] | None:
        return text_of(self._lines, index)

    def line_strip(self, y: int) -> Strip:
        return strip_of(self, self.line(y) or (), self.CSS_NAME, self.scrollable_content_region.width)


def cut(content: Content, width: int, height: int) -> Content:
    """Wrap `content` into at most `height` lines of `width` columns; the last ends with … if text is missing."""
    lines = [line for part in content.split("\n", allow_blank=True) for line in part.wrap(width) or [Content()]]
    if len(lines) > height:
        last = Content.assemble(lines[height - 1].rstrip(), " …")
        lines = [*lines[: height - 1], last.truncate(width, ellipsis=True)]
    return Content("\n").join(lines)


class CutText(Static):
    """Text cut to its widget. most: maximum lines of a widget whose height follows its text; 0: the lines it has."""

    _whole = Content()

    def __init__(self, *, most: int = 0, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self._most = most

    def update(self, content: VisualType = "", *, layout: bool = True) -> None:
        """Show `content`, cut to the size of the widget."""
        self._whole = content if isinstance(content, Content) else Content(str(content))
        self._fit(layout)

    def on_resize(self) -> None:
        self._fit(layout=bool(self._most))

    def _fit(self, layout: bool) -> None:
        width, height = self.content_size.width, self._most or self.content_size.height
        super().update(cut(self._whole, width, height) if width and height else self._whole, layout=layout)
