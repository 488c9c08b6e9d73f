"""The view of one sample: its coloured text, a legend, and everything known about the token under the cursor."""

from __future__ import annotations

import asyncio
from dataclasses import replace
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

from trainer.errors import StorageError
from trainer.runs.folder import RunFolder
from workbench.kit.glyphs import BARS
from workbench.kit.keys import keys_of
from workbench.kit.pane import MountedWhole
from workbench.run.sample_reader import read_channel_columns
from workbench.run.sample_table import TokenSample
from workbench.samples.advantage_screen import AdvantageScreen
from workbench.samples.channels import CHANNELS, Channel, ChannelScale, channel_scale
from workbench.samples.export import parsed
from workbench.samples.sample_list import sample_facts
from workbench.samples.token_inspector import TokenInspector
from workbench.samples.token_text import TokenText, heat_ladder
from workbench.text import fit, visible

LegendPiece = tuple[str, str | float]  # text, and its role (label, text, muted) or its position on the scale, 0 to 1
LegendLine = list[LegendPiece]

_BESIDE = 96  # columns from which the inspector is beside the text
_LEGEND = 33  # columns that the legend needs beside the row of channels
_TALL = 30  # lines from which it gets more room below the text
_LEAST, _LEAST_TALL = 8, 14  # lines of the inspector below the text, however long that is
_NOT_SAVED = "not saved in this run"
_SHORT = {"advantage": "adv", "value": "val", "reward": "rew", "return": "ret", "td_error": "TD"}
_SHORT |= {"ratio": "rat", "logprob": "log", "entropy": "ent"}


class SampleView(MountedWhole, Vertical):
    """Text, legend and inspector; the inspector is beside the text where there is room, else below."""

    def __init__(self) -> None:
        super().__init__()
        self.text = TokenText()
        self.inspector = TokenInspector()
        self._facts = Static(id="sample-facts", markup=False)
        self._extra = Static(id="sample-extra", markup=False)  # what reward functions logged about the response
        self._channels, self._legend = ChannelRow(self.text), TokenLegend(self.text)
        self._folder: RunFolder | None = None
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
        if folder != self._folder:
            self.text.shared.clear()
        self._folder = folder
        self.text.show(sample)
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

    @on(TokenText.Chosen)
    def _explain(self, message: TokenText.Chosen) -> None:
        def closed(index: int | None) -> None:
            if index is not None:
                self.text.cursor = index

        if (sample := self.text.sample) is not None:
            self.app.push_screen(AdvantageScreen(sample, message.index), closed)

    @on(TokenText.ScaleRequested)
    def _rescale(self, message: TokenText.ScaleRequested) -> None:
        channel, folder, sample = CHANNELS[message.channel], self._folder, self.text.sample
        if folder is not None and sample is not None:
            self.run_worker(self._share_scale(folder, sample, channel), exclusive=True, group="scale")

    async def _share_scale(self, folder: RunFolder, sample: TokenSample, channel: Channel) -> None:
        """Draw a channel on the scale of the sample's whole batch, which a thread measures."""

        def measure() -> ChannelScale:
            columns = read_channel_columns(folder, sample.key.iteration, channel.columns)
            ratios = [(ratio,) for ratio in columns.pop("ratios", ())]
            return channel_scale(channel.values(replace(sample, numbers=columns, ratios=ratios)), channel.diverging)

        try:
            scale = await asyncio.to_thread(measure)
        except StorageError:
            return
        shown = self.text.sample
        same = folder == self._folder and shown is not None and shown.key.iteration == sample.key.iteration
        if same and self.display:
            self.text.share_scale(channel.name, scale)


def channel_labels(keys: dict[str, str], width: int) -> list[tuple[str, str, str, str]]:
    """Return the names of the channels with their labels in three parts, of which the second is the key.

    The key is in brackets, or else only a letter of the label, or of a short one, as fits.
    """
    labels: list[tuple[str, str, str, str]] = []
    for brackets, short in ((True, False), (False, False), (False, True)):
        labels = []
        for name, channel in CHANNELS.items():
            key, label = keys.get(name, ""), _SHORT.get(name, channel.label) if short else channel.label
            at = label.lower().find(key.lower()) if len(key) == 1 else -1
            if at >= 0:
                labels.append((name, label[:at], f"[{key}]" if brackets else label[at], label[at + 1 :]))
            else:
                labels.append((name, "", f"[{key}] " if brackets else "", label))
        if sum(len("".join(parts)) + 1 for _, *parts in labels) <= width + 1:
            break
    return labels


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
        return sum(len("".join(parts)) + 1 for _, *parts in self._labels(1000))

    def _labels(self, width: int) -> list[tuple[str, str, str, str]]:
        keys = keys_of(self._text)
        return channel_labels({name: keys.get(f"tokens.{name.replace('_', '-')}", "") for name in CHANNELS}, width)

    def render_line(self, y: int) -> Strip:
        style, segments = self.get_component_rich_style, list[Segment]()
        for name, head, key, tail in self._labels(self.size.width) if y == 0 else ():
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
        for name, *parts in self._labels(self.size.width):
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
        if y:
            line = underline_legend(channel, text.scale(channel.name), width)
        else:
            shared = channel.name in text.shared
            line = color_legend(channel, text.scale(channel.name), width, shared=shared, blocks=blocks)
        ladder = heat_ladder(self.app.theme_variables, diverging=channel.diverging, colorless=colorless)

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

    The ends of the scale are followed by those of the data if these lie beyond them; in narrow places ‹ and › mark
    such an end. scale: None where the sample's file lacks the channel. shared: the scale is that of the batch.
    blocks: show the blocks too, not only the colours.
    """
    name: LegendPiece = (channel.label, "label")
    if scale is None:
        return _first_fitting([[name, (f"  {_NOT_SAVED}", "muted")]], width)
    low, high = channel.number(scale.low), channel.number(scale.high)
    ramp: LegendLine = [(mark if blocks else " ", place / (len(BARS) - 1)) for place, mark in enumerate(BARS)]
    least, greatest = channel.number(scale.least), channel.number(scale.greatest)
    below, above = scale.least < scale.low and least != low, scale.greatest > scale.high and greatest != high
    beyond = f"  from {least} to {greatest}" if below or above else ""
    missing = _missing(scale)
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
    bounds = []
    for size in (scale.high / 3, scale.high * (2 / 3)):
        text = channel.number(size)
        if channel.diverging:
            text = text.replace("+", "±") if channel.signed else f"{channel.number(-size)}/{text}"
        bounds.append(text)
    once, twice = bounds
    texts = [
        f"{start}─ beyond {once}  ═ beyond {twice}{_missing(scale)}",
        f"{start}─ {once}  ═ {twice}{_missing(scale)}",
        f"{channel.label} ─ {once} ═ {twice}{_missing(scale)}",
        f"{channel.label} ─ {once} ═ {twice}",
    ]
    return _first_fitting([[(text, "muted")] for text in texts], width)


def _missing(scale: ChannelScale) -> str:
    return f" · {scale.missing} NaN" if scale.missing else ""


def _first_fitting(lines: list[LegendLine], width: int) -> LegendLine:
    """Return the first line that fits, else the last one, cut to `width`."""
    for line in lines:
        if cell_len("".join(text for text, _ in line)) <= width:
            return [piece for piece in line if piece[0]]
    return [(fit("".join(text for text, _ in lines[-1]), max(width, 0)), "text")]
