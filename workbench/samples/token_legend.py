"""The legend of a token text: the numbers behind its colours, blocks and underlines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

from workbench.columns import fit
from workbench.kit.glyphs import BARS
from workbench.kit.guard import GuardedWidget
from workbench.samples.channels import CHANNELS, Channel, ChannelScale
from workbench.samples.heat import heat_ladder
from workbench.samples.token_text import TokenText

LegendPiece = tuple[str, str | float]  # text, and its role (label, text, muted) or its position on the scale, 0 to 1
LegendLine = list[LegendPiece]

_NOT_SAVED = "not saved in this run"


def legend_lines(
    channel: Channel,
    scale: ChannelScale | None,
    width: int,
    *,
    shared: bool = False,
    blocks: bool = True,
    under: Channel | None = None,
    under_scale: ChannelScale | None = None,
) -> list[LegendLine]:
    """Return a line for the colours and, if there are underlines, one for them, each of at most `width` columns.

    Every finite value lies between the printed ends of the scale, or else between those of the data, which follow
    them; in narrow places ‹ and › mark an end that values lie beyond. scale: None where the sample's file lacks the
    channel. shared: the scale is that of the batch. blocks: show the blocks too, not only the colours.
    """
    lines = [_first_fitting(_colors(channel, scale, shared=shared, blocks=blocks), width)]
    if under is not None:
        lines.append(_first_fitting(_underlines(under, under_scale), width))
    return lines


class TokenLegend(GuardedWidget, Widget):
    """The legend of a `TokenText`."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"token-legend--label", "token-legend--text", "token-legend--muted"}

    _text: TokenText | None = None

    def show(self, text: TokenText) -> None:
        """Explain what `text` shows now."""
        self._text = text
        self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return 2 if self._text and self._text.underline else 1

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        strips = self.strips(width)
        strip = strips[y] if y < len(strips) else Strip.blank(width, self.rich_style)
        return strip.adjust_cell_length(width, self.rich_style)

    def strips(self, width: int) -> list[Strip]:
        """Return the lines of the legend, each of at most `width` columns; none without a sample."""
        text = self._text
        if text is None or text.sample is None:
            return []
        channel, colorless = CHANNELS[text.channel], self.app.no_color
        blocks = text.blocks != "off" or colorless or self.app.current_theme.ansi
        lines = legend_lines(
            channel,
            text.scale(text.channel),
            width,
            shared=text.is_shared(text.channel),
            blocks=blocks,
            under=CHANNELS.get(text.underline),
            under_scale=text.scale(text.underline) if text.underline else None,
        )
        ladder = heat_ladder(self.app.theme_variables, diverging=channel.diverging, colorless=colorless)

        def style(role: str | float) -> Style:
            if isinstance(role, str):
                return self.get_component_rich_style(f"token-legend--{role}")
            return ladder.mark(role) if blocks else ladder.at(role)

        return [Strip([Segment(piece, style(role)) for piece, role in line]) for line in lines]


def _colors(channel: Channel, scale: ChannelScale | None, *, shared: bool, blocks: bool) -> list[LegendLine]:
    """Return the line for the colours, first in full, then ever shorter."""
    name: LegendPiece = (channel.label, "label")
    if scale is None:
        return [[name, (f"  {_NOT_SAVED}", "muted")]]
    low, high = channel.number(scale.low, bound="low"), channel.number(scale.high, bound="high")
    ramp: LegendLine = [(mark if blocks else " ", place / (len(BARS) - 1)) for place, mark in enumerate(BARS)]
    least, greatest = channel.number(scale.least, bound="low"), channel.number(scale.greatest, bound="high")
    below, above = scale.least < scale.low and least != low, scale.greatest > scale.high and greatest != high
    beyond = f"  from {least} to {greatest}" if below or above else ""
    missing = f" · {scale.missing} NaN" if scale.missing else ""
    whose = f" · scale of {'the batch' if shared else 'this sample'}"
    full: LegendLine = [name, (f"  {low} ", "text"), *ramp, (f" {high}", "text")]
    short: LegendLine = [name, (f" {'‹' * below}{low} ", "text"), *ramp, (f" {high}{'›' * above}", "text")]
    return [
        [*full, (beyond + missing + whose, "muted")],
        [*full, (beyond + missing, "muted")],
        [*short, (missing, "muted")],
        [*short, (missing.replace(" · ", " "), "muted")],
        short,
        [name, (f" {'‹' * below}{low} to {high}{'›' * above}", "text")],
    ]


def _underlines(channel: Channel, scale: ChannelScale | None) -> list[LegendLine]:
    """Return the line for the underlines, first in full, then ever shorter."""
    if scale is None:
        return [[(f"underline: {channel.label}  {_NOT_SAVED}", "muted")]]
    once, twice = (_bounds(channel, scale.high * share) for share in (1 / 3, 2 / 3))
    missing = f" · {scale.missing} NaN" if scale.missing else ""
    texts = [
        f"underline: {channel.label}  ─ beyond {once}  ═ beyond {twice}{missing}",
        f"underline: {channel.label}  ─ {once}  ═ {twice}{missing}",
        f"{channel.label} ─ {once} ═ {twice}{missing}",
        f"{channel.label} ─ {once} ═ {twice}",
    ]
    return [[(text, "muted")] for text in texts]


def _bounds(channel: Channel, size: float) -> str:
    if not channel.diverging:
        return channel.number(size)
    if channel.signed:
        return channel.number(size).replace("+", "±")
    return f"{channel.number(-size)}/{channel.number(size)}"


def _first_fitting(lines: Sequence[LegendLine], width: int) -> LegendLine:
    """Return the first line that fits, else the last one, cut to `width`."""
    for line in lines:
        if cell_len("".join(text for text, _ in line)) <= width:
            return [piece for piece in line if piece[0]]
    return [(fit("".join(text for text, _ in lines[-1]), max(width, 0)), "text")]
