"""The view of one sample: its coloured text, a legend, and everything known about the token under the cursor."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

from textual import events, on, work
from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.widgets import Static

from trainer.errors import StorageError
from trainer.runs.folder import RunFolder
from workbench.kit.pane import MountedWhole
from workbench.run.sample_reader import read_channel_columns
from workbench.run.sample_table import Sample, TokenSample
from workbench.samples.advantage_screen import AdvantageScreen
from workbench.samples.channels import CHANNELS, Channel, ChannelScale, channel_scale
from workbench.samples.export import json_columns
from workbench.samples.legend import ChannelRow, TokenLegend
from workbench.samples.sample_list import sample_facts
from workbench.samples.token_inspector import TokenInspector, facts_text
from workbench.samples.token_text import TokenText
from workbench.text import visible

_BESIDE = 96  # columns from which the inspector is beside the text
_LEGEND = 33  # columns that the legend needs beside the row of channels
_TALL = 30  # lines from which it gets more room below the text
_LEAST, _LEAST_TALL = 8, 14  # lines of the inspector below the text, however long that is


class SampleView(MountedWhole, Vertical):
    """Text, legend and inspector; the inspector is beside the text where there is room, else below."""

    def __init__(self) -> None:
        super().__init__()
        self.text = TokenText()
        self._facts = Static(id="sample-facts", markup=False)
        self._extra = Static(id="sample-extra", markup=False)  # what reward functions logged about the response
        self._channels, self._legend = ChannelRow(self.text), TokenLegend(self.text)
        self._inspector = TokenInspector()
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
            yield self._inspector

    def on_mount(self) -> None:
        self.watch(self.text, "virtual_size", self._share_rows, init=False)

    def show(self, folder: RunFolder, sample: TokenSample, *, marked: bool) -> None:
        """Show a sample of the run in `folder`. marked: the sample has a bookmark."""
        if folder != self._folder:
            self.text.forget_scales()
        self._folder = folder
        self.text.show(sample)
        self.mark(marked)

    def mark(self, marked: bool) -> None:
        """Show whether the sample has a bookmark."""
        self._marked = marked
        if (sample := self.text.sample) is None:
            return
        kl = CHANNELS["kl"].values(sample)
        listed = Sample(
            key=sample.key,
            prompt=sample.prompt,
            completion=sample.completion,
            score=sample.score,
            kl=sum(kl) if kl else math.nan,
            length=len(sample),
            truncated=sample.truncated,
        )
        facts = sample_facts(listed, max(self.size.width, 1), marked=marked, iteration=True)
        self._facts.update(facts.strip())
        extra = json_columns(sample.extra)
        pairs = extra.items() if isinstance(extra, dict) else [("extra", extra)]
        self._extra.update("   ".join(visible(f"{name}: {value}") for name, value in pairs))
        self._extra.display = bool(sample.extra)

    @property
    def token_text(self) -> str | None:
        """The token under the cursor with all its numbers, as the inspector shows them; None in an empty sample."""
        facts = self._inspector.facts
        return None if facts is None else facts_text(facts)

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
            self._inspector.styles.height = "1fr"
            return
        head = self._legend.lines if self.has_class("-scale-beside") else 1 + self._legend.lines
        free = self.size.height - 2 - head - self.text.virtual_size.height  # below facts, above the inspector: a line
        self._inspector.styles.height = max(_LEAST_TALL if self.size.height >= _TALL else _LEAST, free)

    @on(TokenText.Moved)
    def _show_token(self) -> None:
        self._inspector.show(self.text.sample, self.text.cursor)

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
        if self.text.is_shared(message.channel):
            self.text.set_scale(message.channel, None)
        elif self._folder is not None and (sample := self.text.sample) is not None:
            self._share_scale(self._folder, sample, CHANNELS[message.channel])

    @work(exclusive=True, group="scale")
    async def _share_scale(self, folder: RunFolder, sample: TokenSample, channel: Channel) -> None:
        """Draw a channel on the scale of the sample's whole batch, which a thread measures."""
        try:
            scale = await asyncio.to_thread(_batch_scale, folder, sample, channel)
        except StorageError:
            return
        shown = self.text.sample
        same = folder == self._folder and shown is not None and shown.key.iteration == sample.key.iteration
        if same and self.display:
            self.text.set_scale(channel.name, scale)


def _batch_scale(folder: RunFolder, sample: TokenSample, channel: Channel) -> ChannelScale:
    """Return the scale of a channel over the batch of `sample`. Raises StorageError."""
    columns = read_channel_columns(folder, sample.key.iteration, channel.columns)
    ratios = [(ratio,) for ratio in columns.pop("ratios", ())]
    return channel_scale(channel.values(replace(sample, numbers=columns, ratios=ratios)), channel.diverging)
