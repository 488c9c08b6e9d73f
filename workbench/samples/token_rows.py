"""Rows of coloured tokens as segments: their text, and the blocks below it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from rich.segment import Segment
from rich.style import Style

from workbench.kit.heat import Ladder, block, heat_ladder, underline_style
from workbench.samples.channels import ChannelValues
from workbench.samples.token_layout import TokenSpan

MARGIN = 2  # columns at the left, for labels of block rows; always present, so that line breaks do not move

_DIM = Style(dim=True)
_ITALIC = Style(italic=True)  # for the stop: its background is often strong, so dimmed text would be unreadable


class TokenStyles(NamedTuple):
    """The styles of a theme."""

    diverging: Ladder
    magnitude: Ladder
    muted: Style
    cursor: Style

    def ladder(self, values: ChannelValues) -> Ladder:
        """Return the ladder for the channel's kind."""
        return self.diverging if values.channel.diverging else self.magnitude


def token_styles(variables: Mapping[str, str], muted: Style, *, focused: bool, colorless: bool) -> TokenStyles:
    """Return the styles of the theme with these variables.

    muted: style of text that is not a token, and of the cursor while the widget has no focus.
    """
    diverging, magnitude = (heat_ladder(variables, diverging=kind, colorless=colorless) for kind in (True, False))
    # The token's own colours reversed could look like another token without a cursor.
    cursor = (diverging.plain if focused else muted) + Style(reverse=True, bold=focused)
    return TokenStyles(diverging, magnitude, muted, cursor)


def text_row(
    spans: Sequence[TokenSpan],
    background: ChannelValues,
    underline: ChannelValues | None,
    at_cursor: Collection[TokenSpan],
    styles: TokenStyles,
) -> Iterator[Segment]:
    """Yield a line of text.

    at_cursor: spans of this line under the cursor.
    """
    ladder = styles.ladder(background)
    yield Segment(" " * MARGIN, ladder.plain)
    for span in spans:
        if not span.width:
            continue
        if span.token < 0:
            yield Segment(span.text, styles.muted)
            continue
        style = ladder.at(background.positions[span.token]) if background.numbers else ladder.plain
        if span.kind != "text":
            style += _ITALIC if span.kind == "stop" else _DIM
        if span in at_cursor:
            style = styles.cursor
        if underline is not None and underline.numbers:
            style += underline_style(underline.positions[span.token], diverging=underline.channel.diverging)
        yield Segment(span.text, style)


def block_row(spans: Sequence[TokenSpan], values: ChannelValues, label: str, styles: TokenStyles) -> Iterator[Segment]:
    """Yield the blocks below the tokens of a line, each as wide as its token without a leading space."""
    ladder, column = styles.ladder(values), 0
    yield Segment(label.ljust(MARGIN), styles.muted)
    for span in spans if values.numbers else ():
        if span.token < 0 or not span.width:
            continue
        start, end = span.start, span.start + span.width
        if span.source.startswith(" ") and span.width > 1:
            start += 1  # so that words stay apart
        position = values.positions[span.token]
        yield Segment(" " * (start - column), ladder.plain)
        yield Segment(block(position, diverging=values.channel.diverging) * (end - start), ladder.mark(position))
        column = end
