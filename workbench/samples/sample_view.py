"""The view of one sample: its coloured text, a legend, and everything known about the token under the cursor."""

from __future__ import annotations

from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static

from trainer.runs.folder import RunFolder
from workbench.kit.glyphs import BARS
from workbench.kit.keys import keys_of
from workbench.kit.pane import MountedWhole
from workbench.run.sample_table import TokenSample
from workbench.samples.channels import CHANNELS, Channel, ChannelScale, heat_ladder
from workbench.samples.export import parsed
from workbench.samples.sample_list import sample_facts
from workbench.samples.token_inspector import TokenInspector
from workbench.samples.token_text import TokenText
from workbench.text import fit, visible

LegendPiece = tuple[str, str | float]  # text, and its role (label, text, muted) or its position on the scale, 0 to 1
LegendLine = list[LegendPiece]

_BESIDE = 96  # columns from which the inspector is beside the text
_LEGEND = 33  # columns that the legend needs beside the row of channels
_TALL = 30  # lines from which it gets more room below the text
_LEAST, _LEAST_TALL = 8, 14  # lines of the inspector below the text, however long that is
_NOT_SAVED = "not saved in this run"


class SampleView(MountedWhole, Vertical):
    """Text, legend and inspector; the inspector is beside the text where there is room, else below."""

    def __init__(self) -> None:
        super().__init__()
        self.text = TokenText()
        self.inspector = TokenInspector()
        self._facts = Static(id="sample-facts", markup=False)
        self._extra = Static(id="sample-extra", markup=False)  # what reward functions logged about the response
        self._channels, self._legend = ChannelRow(self.text), TokenLegend(self.text)
        self._marked = False
        self._extra.display = False

    def compose(self) -> ComposeResult:
        yield self._facts
        yield self._extra
        with Container(id="sample-channels"):
            yield self._channels
            yield self._legend
        with Container(id="sample-body"):
            yield self.text
            yield self.inspector

    def on_mount(self) -> None:
        self.watch(self.text, "virtual_size", self._share_rows, init=False)

    def show(self, folder: RunFolder, sample: TokenSample, *, marked: bool) -> None:
        """Show a sample of the run in `folder`. marked: the sample has a bookmark."""
        self.text.show(sample, folder=folder)
        self.mark(marked)

    def mark(self, marked: bool) -> None:
        """Show whether the sample has a bookmark."""
        self._marked = marked
        if (sample := self.text.sample) is None:
            return
        self._facts.update(sample_facts(sample, max(self.size.width, 1), marked=marked, iteration=True).strip())
        extra = parsed(sample.extra)
        pairs = extra.items() if isinstance(extra, dict) else [("extra", extra)]
        self._extra.update("   ".join(visible(f"{name}: {value}") for name, value in pairs))
        self._extra.display = bool(sample.extra)

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.width >= _BESIDE, "-beside")
        whole = self._channels.whole
        beside = event.size.width >= whole + _LEGEND
        self.set_class(beside, "-scale-beside")
        self._channels.styles.width = whole if beside else "1fr"
        self._share_rows()
        self.mark(self._marked)

    def _share_rows(self) -> None:
        """Give the inspector the rows that the text leaves free below itself."""
        if self.has_class("-beside"):
            self.inspector.styles.height = "1fr"
            return
        head = self._legend.lines if self.has_class("-scale-beside") else 1 + self._legend.lines
        free = self.size.height - 2 - head - self.text.virtual_size.height  # below facts, above the inspector: a line
        self.inspector.styles.height = max(_LEAST_TALL if self.size.height >= _TALL else _LEAST, free)

    @on(TokenText.Moved)
    def _show_token(self) -> None:
        self.inspector.show(self.text.sample, self.text.cursor)

    @on(TokenText.ChannelChanged)
    def _show_legend(self) -> None:
        self._legend.refresh(layout=True)
        self._channels.refresh()
        self._share_rows()


class ChannelRow(Widget):
    """A line of channels with their keys, in grey those that the run does not record; a click chooses one.

    The key is in brackets where there is room, else a letter of the label.
    """

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"channel-row--{part}" for part in ("key", "on", "muted")}

    def __init__(self, text: TokenText) -> None:
        super().__init__()
        self._text = text

    @property
    def whole(self) -> int:
        """Columns of the row with the keys in brackets."""
        return sum(len("".join(parts)) + 1 for _, *parts in self._labels(brackets=True))

    def _labels(self, *, brackets: bool) -> list[tuple[str, str, str, str]]:
        """Return the name of each channel with its label in three parts, of which the second is the key."""
        keys, labels = keys_of(self._text), []
        for name, channel in CHANNELS.items():
            key, label = keys.get(f"tokens.{name.replace('_', '-')}", ""), channel.label
            at = label.lower().find(key.lower()) if len(key) == 1 else -1
            if at >= 0:
                labels.append((name, label[:at], f"[{key}]" if brackets else label[at], label[at + 1 :]))
            else:
                labels.append((name, "", f"[{key}] " if brackets else "", label))
        return labels

    def render_line(self, y: int) -> Strip:
        style, segments = self.get_component_rich_style, list[Segment]()
        for name, head, key, tail in self._labels(brackets=self.whole <= self.size.width + 1) if y == 0 else ():
            if name == self._text.channel:  # not by colour alone
                on_style = style("channel-row--on") + Style(reverse=True, bold=True)
                segments.append(Segment(head + key + tail, on_style))
            elif self._text.scale(name) is None:
                segments.append(Segment(head + key + tail, style("channel-row--muted")))
            else:
                key_style = style("channel-row--key") + Style(underline=len(key) == 1)
                segments += [Segment(head, self.rich_style), Segment(key, key_style), Segment(tail, self.rich_style)]
            segments.append(Segment(" ", self.rich_style))
        return Strip(segments).adjust_cell_length(self.size.width, self.rich_style)

    def on_click(self, event: events.Click) -> None:
        end = 0
        for name, *parts in self._labels(brackets=self.whole <= self.size.width + 1):
            end += len("".join(parts)) + 1
            if event.x < end - 1:
                self._text.channel = name
                self._text.focus()
                return


class TokenLegend(Widget):
    """The legend of a `TokenText`: the numbers behind colours, blocks and underlines."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"token-legend--{role}" for role in ("label", "text", "muted")}

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
        colorless, channel = self.app.no_color, CHANNELS[text.underline if y else text.channel]
        blocks = text.blocks != "off" or colorless or self.app.current_theme.ansi
        scale = text.scale(channel.name)
        if y:
            line = underline_legend(channel, scale, width)
        else:
            line = color_legend(channel, scale, width, shared=channel.name in text.shared, blocks=blocks)
        ladder, strip = heat_ladder(self.app.theme_variables, diverging=channel.diverging, colorless=colorless), []
        for piece, role in line:
            if isinstance(role, str):
                strip.append(Segment(piece, self.get_component_rich_style(f"token-legend--{role}")))
            else:
                strip.append(Segment(piece, ladder.at(role, mark=blocks)))
        return Strip(strip).adjust_cell_length(width, self.rich_style)


def color_legend(
    channel: Channel, scale: ChannelScale | None, width: int, *, shared: bool = False, blocks: bool = True
) -> LegendLine:
    """Return the line for the colours, in full or as short as `width` columns need it.

    The ends of the scale are followed by those of the data if these lie beyond them; in narrow places ‹ and › mark
    such an end. scale: None where the sample's file lacks the channel. shared: the scale is that of the batch.
    blocks: show the blocks too, not only the colours.
    """
    name: LegendPiece = (channel.label, "label")
    if scale is None:
        return _fitting([name, (f"  {_NOT_SAVED}", "muted")], width)
    low, high, least, greatest = map(channel.number, (scale.low, scale.high, scale.least, scale.greatest))
    ramp: LegendLine = [(mark if blocks else " ", place / (len(BARS) - 1)) for place, mark in enumerate(BARS)]
    below, above = scale.least < scale.low and least != low, scale.greatest > scale.high and greatest != high
    more = f"  from {least} to {greatest}" if below or above else ""
    more += f"{_missing(scale)} · scale of {'the batch' if shared else 'this sample'}"
    full: LegendLine = [name, (f"  {low} ", "text"), *ramp, (f" {high}", "text"), (more, "muted")]
    low, high = f" {'‹' * below}{low}", f"{high}{'›' * above}"
    short: LegendLine = [name, (f"{low} ", "text"), *ramp, (f" {high}", "text"), (_missing(scale), "muted")]
    return _fitting(full, width, short, short[:-1], [name, (f"{low} to {high}", "text")])


def underline_legend(channel: Channel, scale: ChannelScale | None, width: int) -> LegendLine:
    """Return the line for the underlines, in full or as short as `width` columns need it."""
    start = f"underline: {channel.label}  "
    if scale is None:
        return _fitting([(start + _NOT_SAVED, "muted")], width)
    bounds = []
    for size in (scale.high / 3, scale.high * (2 / 3)):
        text = channel.number(size)
        if channel.diverging:
            text = text.replace("+", "±") if channel.signed else f"{channel.number(-size)}/{text}"
        bounds.append(text)
    once, twice = bounds
    full: LegendLine = [(f"{start}─ beyond {once}  ═ beyond {twice}{_missing(scale)}", "muted")]
    return _fitting(full, width, [(f"{channel.label} ─ {once} ═ {twice}", "muted")])


def _missing(scale: ChannelScale) -> str:
    return f" · {scale.missing} NaN" if scale.missing else ""


def _fitting(full: LegendLine, width: int, *shorter: LegendLine) -> LegendLine:
    """Return the first of these lines that fits, else the last one, cut to `width`."""
    for line in (full, *shorter):
        text = "".join(text for text, _ in line)
        if cell_len(text) <= width:
            return [piece for piece in line if piece[0]]
    return [(fit(text, max(width, 0)), "text")]
