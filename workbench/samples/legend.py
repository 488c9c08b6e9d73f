"""The lines above the text of a sample: its channels, and the numbers behind colours, blocks and underlines."""

from __future__ import annotations

from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

from workbench.columns import fit
from workbench.kit.glyphs import BARS
from workbench.kit.keys import keys_of
from workbench.samples.channels import CHANNELS, Channel, ChannelScale
from workbench.samples.heat import heat_ladder
from workbench.samples.token_text import TokenText

LegendPiece = tuple[str, str | float]  # text, and its role (label, text, muted) or its position on the scale, 0 to 1
LegendLine = list[LegendPiece]

_NOT_SAVED = "not saved in this run"
_SHORT = {"advantage": "adv", "value": "val", "reward": "rew", "return": "ret", "td_error": "TD"}
_SHORT |= {"ratio": "rat", "logprob": "log", "entropy": "ent"}


def key_place(label: str, key: str) -> int:
    """Return where `key` stands in `label`, -1 where it does not."""
    return label.lower().find(key.lower()) if len(key) == 1 else -1


def channel_labels(keys: dict[str, str], width: int) -> list[tuple[str, str]]:
    """Return the names of the channels with their labels: keys in brackets, else only named, else short, as fits."""
    brackets = []
    for name, channel in CHANNELS.items():
        key, label = keys.get(name, ""), channel.label
        at = key_place(label, key)
        brackets.append((name, f"{label[:at]}[{key}]{label[at + 1 :]}" if at >= 0 else f"[{key}] {label}"))
    plain = [(name, channel.label) for name, channel in CHANNELS.items()]
    for labels in (brackets, plain):
        if sum(len(text) + 1 for _, text in labels) <= width + 1:
            return labels
    return [(name, _SHORT.get(name, label)) for name, label in plain]


class ChannelRow(Widget):
    """A line of channels, with their keys and in grey those that the run does not record; a click chooses one."""

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"channel-row--{part}" for part in ("key", "on", "muted")}

    def __init__(self, text: TokenText) -> None:
        super().__init__()
        self._text = text

    @property
    def whole(self) -> int:
        """Columns of the row with the keys in brackets."""
        return sum(len(text) + 1 for _, text in channel_labels(self._keys, 1000))

    @property
    def _keys(self) -> dict[str, str]:
        keys = keys_of(self._text)
        return {name: keys.get(f"tokens.{name.replace('_', '-')}", "") for name in CHANNELS}

    def render_line(self, y: int) -> Strip:
        style, segments, keys = self.get_component_rich_style, list[Segment](), self._keys
        for name, label in channel_labels(keys, self.size.width) if y == 0 else ():
            if name == self._text.channel:  # not by colour alone
                segments.append(Segment(label, style("channel-row--on") + Style(reverse=True, bold=True)))
            elif self._text.scale(name) is None:
                segments.append(Segment(label, style("channel-row--muted")))
            else:
                start, length = label.find("["), 3
                if start < 0:  # no room for brackets: the key is underlined in the name
                    start, length = key_place(label, keys[name]), 1
                start, end = max(start, 0), start + length if start >= 0 else 0
                segments.append(Segment(label[:start], self.rich_style))
                segments.append(Segment(label[start:end], style("channel-row--key") + Style(underline=length == 1)))
                segments.append(Segment(label[end:], self.rich_style))
            segments.append(Segment(" ", self.rich_style))
        return Strip(segments).adjust_cell_length(self.size.width, self.rich_style)

    def on_click(self, event: events.Click) -> None:
        end = 0
        for name, label in channel_labels(self._keys, self.size.width):
            end += len(label) + 1
            if event.x < end - 1:
                self._text.channel = name
                self._text.focus()
                return


class TokenLegend(Widget):
    """The legend of a `TokenText`."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"token-legend--label", "token-legend--text", "token-legend--muted"}

    def __init__(self, text: TokenText) -> None:
        super().__init__()
        self._text = text

    @property
    def lines(self) -> int:
        """Number of its lines."""
        return 2 if self._text.underline else 1

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return self.lines

    def render_line(self, y: int) -> Strip:
        width, text = self.size.width, self._text
        if text.sample is None or y >= self.lines:
            return Strip.blank(width, self.rich_style)
        colorless = self.app.no_color
        blocks = text.blocks != "off" or colorless or self.app.current_theme.ansi
        if y:
            line = underline_legend(CHANNELS[text.underline], text.scale(text.underline), width)
        else:
            shared = text.is_shared(text.channel)
            line = color_legend(CHANNELS[text.channel], text.scale(text.channel), width, shared=shared, blocks=blocks)
        diverging = CHANNELS[text.channel].diverging
        ladder = heat_ladder(self.app.theme_variables, diverging=diverging, colorless=colorless)

        def style(role: str | float) -> Style:
            if isinstance(role, str):
                return self.get_component_rich_style(f"token-legend--{role}")
            return ladder.mark(role) if blocks else ladder.at(role)

        strip = Strip([Segment(piece, style(role)) for piece, role in line])
        return strip.adjust_cell_length(width, self.rich_style)


def color_legend(
    channel: Channel, scale: ChannelScale | None, width: int, *, shared: bool = False, blocks: bool = True
) -> LegendLine:
    """Return the line for the colours, in full or as short as `width` columns need it.

    Every finite value lies between the printed ends of the scale, or else between those of the data, which follow
    them; in narrow places ‹ and › mark an end that values lie beyond. scale: None where the sample's file lacks the
    channel. shared: the scale is that of the batch. blocks: show the blocks too, not only the colours.
    """
    name: LegendPiece = (channel.label, "label")
    if scale is None:
        return _first_fitting([[name, (f"  {_NOT_SAVED}", "muted")]], width)
    low, high = channel.number(scale.low, bound="low"), channel.number(scale.high, bound="high")
    ramp: LegendLine = [(mark if blocks else " ", place / (len(BARS) - 1)) for place, mark in enumerate(BARS)]
    least, greatest = channel.number(scale.least, bound="low"), channel.number(scale.greatest, bound="high")
    below, above = scale.least < scale.low and least != low, scale.greatest > scale.high and greatest != high
    beyond = f"  from {least} to {greatest}" if below or above else ""
    missing = f" · {scale.missing} NaN" if scale.missing else ""
    whose = f" · scale of {'the batch' if shared else 'this sample'}"
    marked_low, marked_high = f" {'‹' * below}{low}", f"{high}{'›' * above}"
    full: LegendLine = [name, (f"  {low} ", "text"), *ramp, (f" {high}", "text")]
    short: LegendLine = [name, (f"{marked_low} ", "text"), *ramp, (f" {marked_high}", "text")]
    lines: list[LegendLine] = [
        [*full, (beyond + missing + whose, "muted")],
        [*full, (beyond + missing, "muted")],
        [*short, (missing, "muted")],
        [*short, (missing.replace(" · ", " "), "muted")],
        short,
        [name, (f"{marked_low} to {marked_high}", "text")],
    ]
    return _first_fitting(lines, width)


def underline_legend(channel: Channel, scale: ChannelScale | None, width: int) -> LegendLine:
    """Return the line for the underlines, in full or as short as `width` columns need it."""
    start = f"underline: {channel.label}  "
    if scale is None:
        return _first_fitting([[(start + _NOT_SAVED, "muted")]], width)
    once, twice = (_bounds(channel, scale.high * share) for share in (1 / 3, 2 / 3))
    missing = f" · {scale.missing} NaN" if scale.missing else ""
    texts = [
        f"{start}─ beyond {once}  ═ beyond {twice}{missing}",
        f"{start}─ {once}  ═ {twice}{missing}",
        f"{channel.label} ─ {once} ═ {twice}{missing}",
        f"{channel.label} ─ {once} ═ {twice}",
    ]
    return _first_fitting([[(text, "muted")] for text in texts], width)


def _bounds(channel: Channel, size: float) -> str:
    if not channel.diverging:
        return channel.number(size)
    if channel.signed:
        return channel.number(size).replace("+", "±")
    return f"{channel.number(-size)}/{channel.number(size)}"


def _first_fitting(lines: list[LegendLine], width: int) -> LegendLine:
    """Return the first line that fits, else the last one, cut to `width`."""
    for line in lines:
        if cell_len("".join(text for text, _ in line)) <= width:
            return [piece for piece in line if piece[0]]
    return [(fit("".join(text for text, _ in lines[-1]), max(width, 0)), "text")]
