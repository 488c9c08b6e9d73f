"""A response as text, with every token coloured by one of its numbers and a cursor that moves by tokens.

Positions on a scale become colours, or attributes without colours, and underlines, which need neither.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.color import Color
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from workbench.kit.banner import confirm
from workbench.kit.drawing import SelectableLines
from workbench.kit.glyphs import block
from workbench.kit.theming import contrast
from workbench.run.sample_table import TokenSample
from workbench.samples.channels import CHANNELS, ChannelScale, ChannelValues, outliers, read_channel
from workbench.samples.token_layout import TokenLayout, TokenSpan, lay_out

Blocks = Literal["off", "one", "strip"]

_STRIP = {"R": "reward", "K": "kl", "V": "value", "A": "advantage"}
_BLOCKS: tuple[Blocks, ...] = ("off", "one", "strip")
_KEYS = "kavrtdile"  # keys of the channels, in their order
_CHANNELS = list(zip(_KEYS, CHANNELS.values(), strict=True))
_NOT_LAID_OUT = TokenLayout([], 0, [], frozenset())
_OUTLIER = "robust z over 3.5, or not a finite number"
_MARGIN = 2  # columns at the left, for labels of block rows; always present, so that line breaks do not move
_ITALIC = Style(italic=True)  # for marks such as the stop; dimmed text on their background would be unreadable

_STEPS = 8  # of colour, from none to the strongest
_STRONGEST = 0.8  # share of the theme's heat colour in the last step, or less, so that the text keeps its colour
_FAINT = 0.6  # share of the theme's middle colour in the block of zero
_READABLE = 4.5  # contrast of text, WCAG 2.2 AA


def _key(key: str, action: str, description: str, name: str, tooltip: str, *, show: bool = False) -> Binding:
    return Binding(key, action, description, show=show, id=f"tokens.{name.replace('_', '-')}", tooltip=tooltip)


class TokenText(SelectableLines, ScrollView, can_focus=True, inherit_bindings=False):
    """A sample token by token: background from one channel, underline from another, blocks below the lines."""

    TEXT_FROM = _MARGIN
    COMPONENT_CLASSES: ClassVar[set[str]] = {"token-text--muted"}
    BINDINGS: ClassVar[list[BindingType]] = [
        _key("left", "token(-1)", "previous token", "left", "Go to the previous token"),
        _key("right", "token(1)", "next token", "right", "Go to the next token"),
        _key("up", "line(-1)", "up", "up", "Go up a line; above the first line, scroll the prompt"),
        _key("down", "line(1)", "down", "down", "Go down a line"),
        _key("pageup", "page(-1)", "page up", "page-up", "Go up a page"),
        _key("pagedown", "page(1)", "page down", "page-down", "Go down a page"),
        _key("home", "first", "first token", "first", "Go to the first token"),
        _key(
            "right_square_bracket,full_stop",
            "outlier(1)",
            "next outlier",
            "next-outlier",
            f"Next: {_OUTLIER}",
            show=True,
        ),
        _key("left_square_bracket,comma", "outlier(-1)", "previous outlier", "outlier-before", f"Previous: {_OUTLIER}"),
        _key("enter", "choose", "explain", "choose", "Show how the token's advantage was calculated", show=True),
        _key("b", "scale", "batch scale", "scale", "Scale colours to this sample or to its batch", show=True),
        _key("g", "blocks", "blocks", "blocks", "Blocks below the text: none, one channel, or four", show=True),
        _key("W", "toggle('whitespace')", "spaces", "whitespace", "Show spaces as dots"),
        *(_key(key, f"channel('{c.name}')", c.label, c.name, f"Colour by {c.label}: {c.help}") for key, c in _CHANNELS),
        _key("underscore", "underline", "underline", "underline", "Underline by the present channel as well, or stop"),
    ]

    cursor: reactive[int] = reactive(0, init=False, repaint=False)  # a token
    channel: reactive[str] = reactive("advantage", init=False)  # of `CHANNELS`
    underline: reactive[str] = reactive("", init=False)  # of `CHANNELS`, or empty for none
    blocks: reactive[Blocks] = reactive[Blocks]("off", init=False)
    whitespace: reactive[bool] = reactive(False, init=False)

    class Moved(Message):
        """Message sent when the cursor is on another token, or on a token of another sample."""

    class Chosen(Message):
        """Message sent when the token under the cursor was chosen with enter or a double click."""

        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    class ChannelChanged(Message):
        """Message sent when the meaning of the colours, underlines or blocks has changed."""

    class ScaleRequested(Message):
        """Message sent to draw `channel` on the scale of the sample's batch; see `share_scale`."""

        def __init__(self, channel: str) -> None:
            super().__init__()
            self.channel = channel

    def __init__(self) -> None:
        super().__init__()
        self.sample: TokenSample | None = None
        self.shared: dict[str, ChannelScale] = {}  # of the channels that are not drawn on the sample's own
        self._values: dict[str, ChannelValues] = {}
        self._layouts: dict[tuple[int, bool], TokenLayout] = {}
        self._layout = _NOT_LAID_OUT
        self._styles: _Styles | None = None  # None: to be made from the theme again
        self._cursor_cells: list[tuple[int, TokenSpan]] = []
        self._just_opened = False

    def show(self, sample: TokenSample, cursor: int = 0) -> None:
        """Show `sample` with the cursor on a token; keep channel, underline, blocks, and scales of the same batch."""
        if self.sample is not None and self.sample.key.iteration != sample.key.iteration:
            self.shared.clear()
        self.sample = sample
        self._values.clear()
        self._layouts.clear()
        self._layout = _NOT_LAID_OUT
        self.set_reactive(TokenText.cursor, self.validate_cursor(cursor))
        self._just_opened = True
        self._lay_out()
        self.post_message(self.Moved())
        self.post_message(self.ChannelChanged())

    def share_scale(self, channel: str, scale: ChannelScale) -> None:
        """Draw a channel on a scale shared with other samples."""
        self.shared[channel] = scale
        self._values.pop(channel, None)
        self._change_meaning()

    def scale(self, channel: str) -> ChannelScale | None:
        """Return the scale that a channel is drawn on, None where the sample's file lacks the channel."""
        if self.sample is None or not (values := self._values_of(self.sample, channel)).numbers:
            return None
        return values.scale

    def validate_cursor(self, cursor: int) -> int:
        return max(min(cursor, len(self.sample or ()) - 1), 0)

    def watch_cursor(self) -> None:
        self._just_opened = False
        self._refresh_cursor()
        self._cursor_cells = self._layout.cells_of(self.cursor)
        self._refresh_cursor()
        self._scroll_to_cursor()
        self.post_message(self.Moved())

    def watch_channel(self) -> None:
        self._change_meaning()

    watch_underline = watch_channel

    def watch_blocks(self) -> None:
        self._lay_out()
        self._change_meaning()

    def watch_whitespace(self) -> None:
        self._lay_out()

    def on_mount(self) -> None:
        if self.app.no_color and self.blocks == "off":
            self.blocks = "one"

    def on_resize(self) -> None:
        self._lay_out()

    def notify_style_update(self) -> None:  # called when focus or theme has changed
        super().notify_style_update()
        self._styles = None

    def action_token(self, by: int) -> None:
        self.cursor += by

    def action_first(self) -> None:
        self.cursor = 0

    def action_line(self, by: int) -> None:
        self._go_lines(by, by)

    def action_page(self, by: int) -> None:
        self._go_lines(by * max(self.size.height // self._rows, 1), by * self.size.height)

    def action_outlier(self, by: int) -> None:
        """Move to the next (by = 1) or previous (by = -1) token whose number is an outlier."""
        places = outliers(self._values_of(self.sample, self.channel).numbers)[::by] if self.sample else []
        found = next((place for place in places if (place - self.cursor) * by > 0), None)
        if found is None:
            confirm(self, f"No more outliers of {CHANNELS[self.channel].label} in this direction")
        else:
            self.cursor = found

    def action_choose(self) -> None:
        if self.sample is not None and len(self.sample):
            self.post_message(self.Chosen(self.cursor))

    def action_channel(self, name: str) -> None:
        self.channel = name

    def action_underline(self) -> None:
        """Underline by the channel of the colours, which may then become another; a second time, stop."""
        self.underline = "" if self.underline == self.channel else self.channel

    def action_scale(self) -> None:
        if self.shared.pop(self.channel, None) is None:
            self.post_message(self.ScaleRequested(self.channel))
        else:
            self._values.pop(self.channel, None)
            self._change_meaning()

    def action_blocks(self) -> None:
        self.blocks = _BLOCKS[(_BLOCKS.index(self.blocks) + 1) % len(_BLOCKS)]

    def text_select_all(self) -> None:
        """Select nothing: a double click explains a token."""

    def on_click(self, event: events.Click) -> None:
        place = event.get_content_offset(self)
        if place is None or self.text_selection is not None:  # the end of a selection
            return
        line, _ = self._line_at(place.y + self.scroll_offset.y)
        if (token := self._layout.token_at(line, place.x - _MARGIN)) is not None:
            self.cursor = token
            if event.chain == 2:
                self.post_message(self.Chosen(token))

    def text_of_line(self, index: int) -> tuple[str, str] | None:
        line, row = self._line_at(index)
        if line >= len(self._layout.lines):
            return None
        if row:
            return "", ""  # blocks
        spans = self._layout.lines[line]
        text = "".join(span.text for span in spans if span.kind != "newline")
        return " " * _MARGIN + text, "" if line in self._layout.wrapped else "\n"

    def line_strip(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        line, row = self._line_at(y + self.scroll_offset.y)
        if self.sample is None or line >= len(self._layout.lines):
            return Strip.blank(width, self.rich_style)
        if self._styles is None:
            variables, colorless, focused = self.app.theme_variables, self.app.no_color, self.has_focus
            up, around = (heat_ladder(variables, diverging=kind, colorless=colorless) for kind in (False, True))
            muted = self.get_component_rich_style("token-text--muted")
            # The token's own colours reversed could look like another token without a cursor.
            cursor = (around.plain if focused else muted) + Style(reverse=True, bold=focused)
            self._styles = _Styles(up, around, muted, cursor)
        draw = self._block_row(self.sample, line, row) if row else self._text_row(self.sample, line)
        return Strip(draw).adjust_cell_length(width, self.rich_style)

    def _text_row(self, sample: TokenSample, line: int) -> Iterator[Segment]:
        assert self._styles is not None
        background = self._values_of(sample, self.channel)
        underline = self._values_of(sample, self.underline) if self.underline else None
        at_cursor = [span for at, span in self._cursor_cells if at == line]
        ladder = self._styles.ladder(background)
        yield Segment(" " * _MARGIN, ladder.plain)
        for span in self._layout.lines[line]:
            if span.token < 0:
                yield Segment(span.text, self._styles.muted)
                continue
            style = ladder.at(background.positions[span.token]) if background.numbers else ladder.plain
            if span.kind != "text":
                style += _ITALIC
            if span in at_cursor:
                style = self._styles.cursor
            if underline is not None and underline.numbers:
                style += underline_style(underline.positions[span.token], diverging=underline.channel.diverging)
            yield Segment(span.text, style)

    def _block_row(self, sample: TokenSample, line: int, row: int) -> Iterator[Segment]:
        """Yield the blocks below the tokens of a line, each as wide as its token without a leading space."""
        assert self._styles is not None
        label, channel = list(_STRIP.items())[row - 1] if self.blocks == "strip" else ("", self.channel)
        values = self._values_of(sample, channel)
        ladder, column = self._styles.ladder(values), 0
        yield Segment(label.ljust(_MARGIN), self._styles.muted)
        for span in self._layout.lines[line] if values.numbers else ():
            if span.token < 0:
                continue
            start, end = span.start, span.start + span.width
            if span.text[0] in " ·" and span.width > 1:
                start += 1  # so that words stay apart
            position = values.positions[span.token]
            yield Segment(" " * (start - column), ladder.plain)
            yield Segment(block(position, diverging=values.channel.diverging) * (end - start), ladder.mark(position))
            column = end

    def _values_of(self, sample: TokenSample, channel: str) -> ChannelValues:
        if channel not in self._values:
            self._values[channel] = read_channel(sample, CHANNELS[channel], self.shared.get(channel))
        return self._values[channel]

    def _change_meaning(self) -> None:
        self.refresh()
        self.post_message(self.ChannelChanged())

    @property
    def _rows(self) -> int:
        """Number of screen rows for a line of the response."""
        return {"off": 1, "one": 2, "strip": 1 + len(_STRIP)}[self.blocks]

    def _line_at(self, y: int) -> tuple[int, int]:
        """Return the line at row `y` of the whole text, and the row within that line."""
        first = self._layout.response
        if y < first:
            return y, 0
        line, row = divmod(y - first, self._rows)
        return first + line, row

    def _row_of(self, line: int) -> int:
        """Return the first row of a line; only lines of the response have more than one row."""
        first = self._layout.response
        return line if line < first else first + (line - first) * self._rows

    def _lay_out(self) -> None:
        width = self.scrollable_content_region.width - _MARGIN
        if self.sample is None or width < 1:
            return
        key = (width, self.whitespace)
        if key not in self._layouts:
            self._layouts[key] = lay_out(self.sample, width, whitespace=self.whitespace)
        self._layout = self._layouts[key]
        self._cursor_cells = self._layout.cells_of(self.cursor)
        self.virtual_size = Size(width + _MARGIN, self._row_of(len(self._layout.lines)))
        self._scroll_to_cursor()
        self.refresh()

    def _go_lines(self, by: int, rows: int) -> None:
        """Move to a token `by` lines away; if there is none above, scroll by `rows` into the prompt."""
        found = self._layout.lines_away(self.cursor, by)
        if found is not None:
            self.cursor = found
        elif rows < 0:
            self.scroll_relative(y=rows, animate=False, force=True)

    def _refresh_cursor(self) -> None:
        for line, _ in self._cursor_cells:
            self.refresh_lines(self._row_of(line))

    def _scroll_to_cursor(self) -> None:
        """Scroll just enough to show the cursor.

        Until the cursor moves, a sample starts at its top, or some lines above the cursor if that would not be visible.
        """
        height = self.scrollable_content_region.height
        if height < 1:
            return
        lines = [line for line, _ in self._cursor_cells] or [0]
        top, bottom = self._row_of(lines[0]), self._row_of(lines[-1]) + self._rows
        if self._just_opened:
            wanted = 0 if bottom <= height else max(top - height // 3, 0)
        else:
            wanted = min(max(self.scroll_offset.y, bottom - height), top)
        if wanted != self.scroll_offset.y:
            self.scroll_to(y=wanted, animate=False, force=True)


@dataclass(frozen=True, slots=True)
class Ladder:
    """Styles of text from one end of a scale to the other; `plain` for a token without a reading."""

    steps: tuple[Style, ...]
    marks: tuple[Style, ...]  # of the blocks, which have no background
    missing: Style
    plain: Style

    def at(self, position: float) -> Style:
        """Return the style of text at `position`, 0 to 1; for NaN, that of a missing number."""
        return self.missing if math.isnan(position) else self.steps[_nearest(position, len(self.steps))]

    def mark(self, position: float) -> Style:
        """Return the style of the block at `position`, 0 to 1; for NaN, that of a missing number."""
        return self.missing if math.isnan(position) else self.marks[_nearest(position, len(self.marks))]


def heat_ladder(variables: Mapping[str, str], *, diverging: bool, colorless: bool = False) -> Ladder:
    """Return the ladder of the theme with these variables.

    Values further from the middle, or from 0 of a magnitude, stand out more. Text reaches a contrast of 4.5 on every
    step. The terminal's own colours (`ansi_...`) cannot be mixed, so they give few steps: plain, coloured text,
    coloured background. colorless: use attributes only.
    """
    if colorless:
        plain, strong = Style(), Style(bold=True)
        attributes = (strong, plain, strong) if diverging else (plain, strong)
        return Ladder(attributes, (plain,), Style(italic=True), plain)
    ground, text = Color.parse(variables["background"]), Color.parse(variables["foreground"])
    low, mid, high = (Color.parse(variables[f"heat-{name}"]) for name in ("low", "mid", "high"))
    plain, missing = _style(text, ground), _style(mid, ground) + Style(italic=True)
    rising, marks = _rise(mid, high, text, ground)
    if not diverging:
        return Ladder((plain, *rising), marks, missing, plain)
    falling, others = _rise(mid, low, text, ground)
    return Ladder((*reversed(falling), plain, *rising), (*reversed(others[1:]), *marks), missing, plain)


def underline_style(position: float, *, diverging: bool) -> Style:
    """Return no underline in the first third of the way to an end, one in the second, two in the last; none for NaN."""
    size = abs(2 * position - 1) if diverging else position
    if not size >= 1 / 3:
        return Style.null()
    return Style(underline=True, underline2=True) if size > 2 / 3 else Style(underline=True)


def _nearest(position: float, count: int) -> int:
    return math.floor(position * (count - 1) + 0.5)


def _rise(mid: Color, heat: Color, text: Color, ground: Color) -> tuple[tuple[Style, ...], tuple[Style, ...]]:
    """Return the styles of text after the plain one up to `heat`, and those of blocks from the middle up to it."""
    if ground.ansi is not None:
        ends = Color.parse("ansi_black"), Color.parse("ansi_bright_white")
        steps = _style(heat, ground), _style(max(ends, key=lambda end: contrast(end, heat)), heat)
        return steps, (_style(mid, ground), _style(heat, ground))
    shares = (_STRONGEST * share / 40 for share in range(40, 0, -1))
    strongest = next((share for share in shares if contrast(text, ground.blend(heat, share)) >= _READABLE), 0.0)
    grounds = [ground.blend(heat, strongest * step / _STEPS) for step in range(1, _STEPS + 1)]
    least = ground.blend(mid, _FAINT)
    marks = tuple(_style(least.blend(heat, step / _STEPS), ground) for step in range(_STEPS + 1))
    return tuple(_style(text, on) for on in grounds), marks


def _style(text: Color, ground: Color) -> Style:
    return Style(color=text.rich_color, bgcolor=ground.rich_color)


class _Styles(NamedTuple):
    """The styles of a theme, with and without the focus."""

    up: Ladder
    around: Ladder
    muted: Style  # of text that is not a token
    cursor: Style

    def ladder(self, values: ChannelValues) -> Ladder:
        return self.around if values.channel.diverging else self.up
