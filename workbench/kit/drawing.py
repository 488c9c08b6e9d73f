"""Widgets that draw lines of text with roles in the theme's colours; their text can be selected with the mouse."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.binding import BindingType
from textual.content import Content
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.visual import VisualType
from textual.widget import Widget
from textual.widgets import Static

from workbench.kit.keys import hidden_key
from workbench.text import MISSING, Line, Piece, WrappedLine, fit_start, following, plain, visible

if TYPE_CHECKING:
    _Base = Widget
else:
    _Base = object  # Textual takes the styles of the first base that is a widget: not of this mixin


class SelectableLines(_Base):
    """A widget of drawn lines whose text can be selected. A subclass implements `content_line`.

    A line is addressed by its place in the content, which `line_at` gives for a row of the widget. The component
    classes are `CSS_NAME`-- and the roles in the lines.
    """

    CSS_NAME: ClassVar[str] = "drawn"
    TEXT_FROM: ClassVar[int] = 0
    """Columns at the left that are never copied, such as the mark of the cursor."""

    _is_painting = False

    def content_line(self, index: int) -> Sequence[Piece] | None:
        """Return a line of the content; None after the last."""
        raise NotImplementedError

    def line_at(self, y: int) -> int:
        """Return the line of the content that is shown in row `y` of the widget."""
        return y + self.scroll_offset.y

    def row(self, y: int) -> Sequence[Piece]:
        """Return what is shown in row `y` of the widget."""
        return self.content_line(self.line_at(y)) or ()

    def line_strip(self, y: int) -> Strip:
        """Draw row `y` of the widget."""
        plain_style, style = self.rich_style, self.get_component_rich_style
        segments = [
            Segment(text, style(f"{self.CSS_NAME}--{role}") if role else plain_style) for text, role in self.row(y)
        ]
        return Strip(segments).adjust_cell_length(self.scrollable_content_region.width, plain_style)

    def text_of_line(self, index: int) -> tuple[str, str] | None:
        """Return the text of a line of the content, and what follows it in a copy; None after the last line.

        What follows is a newline, but the characters that wrapping has removed where the line was wrapped.
        """
        line = self.content_line(index)
        return None if line is None else (plain(line), following(line))

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
            text, after = found
            first = start.x if start and index == start.y else 0
            last = end.x if end and index == end.y else len(text)
            copied += [text[max(first, self.TEXT_FROM) : last].rstrip(), after]
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


OVERLAYS = 5  # other runs that a chart can show beside its own
DRAWN = {
    f"drawn--{role}"
    for role in (
        *("text", "strong", "muted", "axis", "bar", "ema", "target", "missing", "cursor", "selected"),
        *("policy", "reference", "better", "worse", "warning"),
        *(f"run-{number}" for number in range(1, OVERLAYS + 1)),
    )
}
"""Component classes of what is drawn in the roles of a chart."""


def rule(text: str, width: int, *, legend: Iterable[Piece] = (), missing: int = 0) -> Line:
    """Return a heading: `text`, a legend, how many numbers are `missing` if any, and a line to the end of `width`."""
    line: Line = [(fit_start(f" {text}", width), "muted")]
    for name, role in legend:
        line.append((fit_start(f"  {name}", width - len(plain(line))), role))
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


class Drawn(SelectableLines, Widget):
    """A widget that shows the lines that a function draws."""

    COMPONENT_CLASSES: ClassVar[set[str]] = DRAWN
    _lines_of: Callable[[int, int], Sequence[Line]] | None = None
    _lines: Sequence[Line] = ()
    _drawn_size = (-1, -1)

    def show(self, lines_of: Callable[[int, int], Sequence[Line]]) -> None:
        """Show what `lines_of` returns for a width and a height, also after these have changed."""
        self._lines_of, self._drawn_size = lines_of, (-1, -1)
        self.refresh()

    def content_line(self, index: int) -> Line | None:
        if self._drawn_size != self.size and self._lines_of is not None:
            self._lines, self._drawn_size = self._lines_of(*self.size)[: self.size.height], self.size
        return self._lines[index] if index < len(self._lines) else None


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
        hidden_key(key, action.format(how), description, f"{area}.{name}", tooltip)
        for name, (key, how, description, tooltip) in zip(names.split(), _SCROLLING, strict=True)
    ]


class ScrolledLines(SelectableLines, ScrollView, can_focus=True, inherit_bindings=False):
    """A scrollable text that a function wraps, or a subclass. A subclass binds keys to scrolling."""

    _lines: Sequence[Line] = ()
    _lines_of: Callable[[int], Sequence[Line]] | None = None

    def show_lines(self, lines_of: Callable[[int], Sequence[Line]], *, from_start: bool = True) -> None:
        """Show what `lines_of` returns for a width. from_start: scroll to its start, else keep the scroll position."""
        self._lines_of = lines_of
        self.lay_out()
        if from_start:
            self.scroll_to(y=0, animate=False, force=True)

    def wrap(self, width: int) -> Sequence[Line]:
        """Return the whole text in lines of at most `width` columns."""
        return self._lines_of(width) if self._lines_of else ()

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

    def content_line(self, index: int) -> Line | None:
        return self._lines[index] if index < len(self._lines) else None


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
        width, height = self.content_size.width, self._most or self.content_size.height
        super().update(cut(self._whole, width, height) if width and height else self._whole, layout=layout)

    def on_resize(self) -> None:
        self.update(self._whole, layout=bool(self._most))
