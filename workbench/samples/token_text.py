"""A response as text, with every token coloured by one of its numbers and a cursor that moves by tokens.

Positions on a scale become colours, or attributes without colours, and underlines, which need neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Literal

from rich.segment import Segment
from rich.style import Style
from textual import events, work
from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from trainer.errors import StorageError
from trainer.runs.folder import RunFolder
from workbench.kit.banner import NOTE_SECONDS, Banner
from workbench.kit.drawing import SelectableLines
from workbench.kit.glyphs import block
from workbench.kit.keys import bind, hidden_key
from workbench.run.sample_reader import read_channel_columns
from workbench.run.sample_table import TokenSample
from workbench.samples.advantage_screen import AdvantageScreen
from workbench.samples.channels import (
    CHANNELS,
    ChannelScale,
    ChannelValues,
    Ladder,
    channel_scale,
    heat_ladder,
    outliers,
    underline_style,
)
from workbench.samples.token_layout import TokenLayout, TokenSpan, lay_out

Blocks = Literal["off", "one", "strip"]

_STRIP = {"R": "reward", "K": "kl", "V": "value", "A": "advantage"}
_ROWS: dict[Blocks, int] = {"off": 1, "one": 2, "strip": 1 + len(_STRIP)}  # on the screen, for a line of the response
_ALL = 10**9  # tokens
_FAR = "robust z over 3.5, or not a finite number"
_NOT_LAID_OUT = TokenLayout([], 0, [], frozenset())
_MARGIN = 2  # columns at the left, for labels of block rows; always present, so that line breaks do not move
_ITALIC = Style(italic=True)  # for marks such as the stop; dimmed text on their background would be unreadable


class TokenText(SelectableLines, ScrollView, can_focus=True, inherit_bindings=False):
    """A sample token by token: background from one channel, underline from another, blocks below the lines."""

    TEXT_FROM = _MARGIN
    COMPONENT_CLASSES: ClassVar[set[str]] = {"token-text--muted"}
    BINDINGS: ClassVar[list[BindingType]] = [
        hidden_key("left", "token(-1)", "previous token", "tokens.left", "Go to the previous token"),
        hidden_key("right", "token(1)", "next token", "tokens.right", "Go to the next token"),
        hidden_key("up", "line(-1)", "up", "tokens.up", "Go up a line; above the first line, scroll the prompt"),
        hidden_key("down", "line(1)", "down", "tokens.down", "Go down a line"),
        hidden_key("pageup", "page(-1)", "page up", "tokens.page-up", "Go up a page"),
        hidden_key("pagedown", "page(1)", "page down", "tokens.page-down", "Go down a page"),
        hidden_key("home", f"token({-_ALL})", "first token", "tokens.first", "Go to the first token"),
        bind("right_square_bracket,full_stop", "outlier(1)", "next outlier", "tokens.next-outlier", f"Next: {_FAR}"),
        hidden_key(
            "left_square_bracket,comma", "outlier(-1)", "previous outlier", "tokens.outlier-before", f"Previous: {_FAR}"
        ),
        bind("enter", "choose", "explain", "tokens.choose", "Show how the token's advantage was calculated"),
        bind("b", "scale", "batch scale", "tokens.scale", "Scale colours to this sample or to its batch"),
        bind("g", "blocks", "blocks", "tokens.blocks", "Blocks below the text: none, one channel, or four"),
        hidden_key("W", "toggle('whitespace')", "spaces", "tokens.whitespace", "Show spaces as dots"),
        *(
            hidden_key(
                c.key,
                f"channel('{name}')",
                c.label,
                f"tokens.{name.replace('_', '-')}",
                f"Colour by {c.label}: {c.help}",
            )
            for name, c in CHANNELS.items()
        ),
        hidden_key(
            "underscore",
            "underline",
            "underline",
            "tokens.underline",
            "Underline by the present channel as well, or stop",
        ),
    ]

    cursor: reactive[int] = reactive(0, init=False, repaint=False)  # a token
    channel: reactive[str] = reactive("advantage", init=False)  # of `CHANNELS`
    underline: reactive[str] = reactive("", init=False)  # of `CHANNELS`, or empty for none
    blocks: reactive[Blocks] = reactive[Blocks]("off", init=False)
    whitespace: reactive[bool] = reactive(False, init=False)

    class Moved(Message):
        """Message sent when the cursor is on another token, or on a token of another sample."""

    class ChannelChanged(Message):
        """Message sent when the meaning of the colours, underlines or blocks has changed."""

    def __init__(self) -> None:
        super().__init__()
        self.sample: TokenSample | None = None
        self.shared: dict[str, ChannelScale] = {}  # of the channels that are not drawn on the sample's own
        self._folder: RunFolder | None = None
        self._values: dict[str, ChannelValues] = {}
        self._layout = _NOT_LAID_OUT
        self._laid_out: tuple[int, bool] | None = None  # the width and `whitespace` of the layout
        self._ladders: dict[bool, Ladder] = {}  # of diverging channels and of magnitudes; empty: of another theme
        self._cursor_cells: list[tuple[int, TokenSpan]] = []
        self._just_opened = False

    def show(self, sample: TokenSample, cursor: int = 0, *, folder: RunFolder | None = None) -> None:
        """Show `sample` with the cursor on a token; keep channel, underline, blocks, and scales of the same batch.

        folder: of its run, where the scale of the batch can be read.
        """
        if folder != self._folder or (self.sample and self.sample.key.iteration != sample.key.iteration):
            self.shared.clear()
        self.sample, self._folder = sample, folder
        self._layout, self._laid_out = _NOT_LAID_OUT, None
        self._values.clear()
        self.set_reactive(TokenText.cursor, self.validate_cursor(cursor))
        self._just_opened = True
        self._lay_out()
        self.post_message(self.Moved())
        self.post_message(self.ChannelChanged())

    def scale(self, channel: str) -> ChannelScale | None:
        """Return the scale that a channel is drawn on, None where the sample's file lacks the channel."""
        values = self._values_of(channel)
        return values.scale if values and values.numbers else None

    def validate_cursor(self, cursor: int) -> int:
        return max(min(cursor, len(self.sample or ()) - 1), 0)

    def watch_cursor(self) -> None:
        self._just_opened = False
        before, self._cursor_cells = self._cursor_cells, self._layout.cells_of(self.cursor)
        for line, _ in (*before, *self._cursor_cells):
            self.refresh_lines(self._row_of(line))
        self._scroll_to_cursor()
        self.post_message(self.Moved())

    def watch_channel(self) -> None:
        self.refresh()
        self.post_message(self.ChannelChanged())

    watch_underline = watch_channel

    def watch_blocks(self) -> None:
        self._lay_out()
        self.watch_channel()

    def on_mount(self) -> None:
        if self.app.no_color and self.blocks == "off":
            self.blocks = "one"

    def notify_style_update(self) -> None:  # called when focus or theme has changed
        super().notify_style_update()
        self._ladders.clear()

    def action_token(self, by: int) -> None:
        self.cursor += by

    def action_line(self, by: int, rows: int = 1) -> None:
        """Move to a token `by` lines away; if there is none above, scroll by `rows` into the prompt."""
        found = self._layout.lines_away(self.cursor, by)
        if found is not None:
            self.cursor = found
        elif by < 0:
            self.scroll_relative(y=-rows, animate=False, force=True)

    def action_page(self, by: int) -> None:
        self.action_line(by * max(self.size.height // _ROWS[self.blocks], 1), self.size.height)

    def action_outlier(self, by: int) -> None:
        """Move to the next (by = 1) or previous (by = -1) token whose number is an outlier."""
        values = self._values_of(self.channel)
        places = outliers(values.numbers)[::by] if values else []
        found = next((place for place in places if (place - self.cursor) * by > 0), None)
        if found is None:
            message = f"No more outliers of {CHANNELS[self.channel].label} in this direction"
            Banner.of(self.screen).say(message, "note", seconds=NOTE_SECONDS)
        else:
            self.cursor = found

    def action_choose(self) -> None:
        """Explain the token under the cursor."""

        def closed(index: int | None) -> None:
            if index is not None:
                self.cursor = index

        if self.sample is not None and len(self.sample):
            self.app.push_screen(AdvantageScreen(self.sample, self.cursor), closed)

    def action_channel(self, name: str) -> None:
        self.channel = name

    def action_underline(self) -> None:
        """Underline by the channel of the colours, which may then become another; a second time, stop."""
        self.underline = "" if self.underline == self.channel else self.channel

    @work(exclusive=True, group="scale")
    async def action_scale(self) -> None:
        """Draw the channel on the scale of the sample's batch, or on that of the sample again."""
        channel, sample, folder = CHANNELS[self.channel], self.sample, self._folder
        if sample is None or folder is None:
            return

        def measure() -> ChannelScale:
            columns = read_channel_columns(folder, sample.key.iteration, channel.columns)
            ratios = [(ratio,) for ratio in columns.pop("ratios", ())]
            return channel_scale(channel.values(replace(sample, numbers=columns, ratios=ratios)), channel.diverging)

        if self.shared.pop(channel.name, None) is None:
            try:
                scale = await asyncio.to_thread(measure)
            except StorageError:
                return
            if self.sample is None or (folder, sample.key.iteration) != (self._folder, self.sample.key.iteration):
                return
            self.shared[channel.name] = scale
        self._values.pop(channel.name, None)
        self.watch_channel()

    def action_blocks(self) -> None:
        kinds = [*_ROWS]
        self.blocks = kinds[(kinds.index(self.blocks) + 1) % len(kinds)]

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
                self.action_choose()

    def text_of_line(self, index: int) -> tuple[str, str] | None:
        line, row = self._line_at(index)
        if line >= len(self._layout.lines):
            return None
        if row:
            return "", ""  # blocks
        spans = self._layout.lines[line]
        text = "".join(span.text for span in spans if span.kind != "newline")
        # A copy leaves out spaces at the end of a line, which belong between the words of wrapped text.
        return " " * _MARGIN + text, text[len(text.rstrip()) :] if line in self._layout.wrapped else "\n"

    def line_strip(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        line, row = self._line_at(y + self.scroll_offset.y)
        if self.sample is None or line >= len(self._layout.lines):
            return Strip.blank(width, self.rich_style)
        if not self._ladders:
            variables, colorless = self.app.theme_variables, self.app.no_color
            self._ladders = {
                kind: heat_ladder(variables, diverging=kind, colorless=colorless) for kind in (False, True)
            }
        draw = self._block_row(line, row) if row else self._text_row(line)
        return Strip(draw).adjust_cell_length(width, self.rich_style)

    def _text_row(self, line: int) -> Iterator[Segment]:
        background, underline = self._values_of(self.channel), self._values_of(self.underline)
        assert background is not None
        at_cursor = [span for at, span in self._cursor_cells if at == line]
        ladder, muted = self._ladders[background.channel.diverging], self.get_component_rich_style("token-text--muted")
        yield Segment(" " * _MARGIN, ladder.plain)
        for span in self._layout.lines[line]:
            if span.token < 0:
                yield Segment(span.text, muted)
                continue
            style = ladder.at(background.positions[span.token]) if background.numbers else ladder.plain
            if span.kind != "text":
                style += _ITALIC
            if span in at_cursor:
                # The token's own colours reversed could look like another token without a cursor.
                style = (ladder.plain if self.has_focus else muted) + Style(reverse=True, bold=self.has_focus)
            if underline is not None and underline.numbers:
                style += underline_style(underline.positions[span.token], diverging=underline.channel.diverging)
            yield Segment(span.text, style)

    def _block_row(self, line: int, row: int) -> Iterator[Segment]:
        """Yield the blocks below the tokens of a line, each as wide as its token."""
        label, channel = list(_STRIP.items())[row - 1] if self.blocks == "strip" else ("", self.channel)
        values, column = self._values_of(channel), 0
        assert values is not None
        ladder = self._ladders[values.channel.diverging]
        yield Segment(label.ljust(_MARGIN), self.get_component_rich_style("token-text--muted"))
        for span in self._layout.lines[line] if values.numbers else ():
            if span.token < 0:
                continue
            position, diverging = values.positions[span.token], values.channel.diverging
            yield Segment(" " * (span.start - column), ladder.plain)
            yield Segment(block(position, diverging=diverging) * span.width, ladder.at(position, mark=True))
            column = span.start + span.width

    def _values_of(self, channel: str) -> ChannelValues | None:
        """Return the numbers of a channel; None without a sample, or for the channel ""."""
        if self.sample is None or not channel:
            return None
        if channel not in self._values:
            numbers = CHANNELS[channel].values(self.sample)
            scale = self.shared.get(channel) or channel_scale(numbers, CHANNELS[channel].diverging)
            positions = [scale.position(number) for number in numbers]
            self._values[channel] = ChannelValues(CHANNELS[channel], numbers, positions, scale)
        return self._values[channel]

    def _line_at(self, y: int) -> tuple[int, int]:
        """Return the line at row `y` of the whole text, and the row within that line."""
        first = self._layout.response
        if y < first:
            return y, 0
        line, row = divmod(y - first, _ROWS[self.blocks])
        return first + line, row

    def _row_of(self, line: int) -> int:
        """Return the first row of a line; only lines of the response have more than one row."""
        first = self._layout.response
        return line if line < first else first + (line - first) * _ROWS[self.blocks]

    def _lay_out(self) -> None:
        width = self.scrollable_content_region.width - _MARGIN
        if self.sample is None or width < 1:
            return
        if self._laid_out != (width, self.whitespace):
            self._laid_out = (width, self.whitespace)
            self._layout = lay_out(self.sample, width, whitespace=self.whitespace)
        self._cursor_cells = self._layout.cells_of(self.cursor)
        self.virtual_size = Size(width + _MARGIN, self._row_of(len(self._layout.lines)))
        self._scroll_to_cursor()
        self.refresh()

    on_resize = watch_whitespace = _lay_out

    def _scroll_to_cursor(self) -> None:
        """Scroll just enough to show the cursor.

        Until the cursor moves, a sample starts at its top, or some lines above the cursor if that would not be visible.
        """
        height = self.scrollable_content_region.height
        if height < 1:
            return
        lines = [line for line, _ in self._cursor_cells] or [0]
        top, bottom = self._row_of(lines[0]), self._row_of(lines[-1]) + _ROWS[self.blocks]
        if self._just_opened:
            wanted = 0 if bottom <= height else max(top - height // 3, 0)
        else:
            wanted = min(max(self.scroll_offset.y, bottom - height), top)
        if wanted != self.scroll_offset.y:
            self.scroll_to(y=wanted, animate=False, force=True)
