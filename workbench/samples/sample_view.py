"""The view of one sample: its coloured text, a legend, and everything known about the token under the cursor."""

from __future__ import annotations

import asyncio
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
from workbench.samples.channel_row import ChannelRow
from workbench.samples.channels import CHANNELS, Channel, ChannelScale, channel_scale
from workbench.samples.export import json_columns
from workbench.samples.sample_list import sample_facts
from workbench.samples.token_inspector import TokenInspector, facts_text
from workbench.samples.token_legend import TokenLegend
from workbench.samples.token_text import TokenText
from workbench.text import visible

_BESIDE = 96  # columns from which the inspector is beside the text
_LEGEND = 33  # columns that the legend needs beside the row of channels
_TALL = 30  # lines from which it gets more room below the text
_LEAST, _LEAST_TALL = 8, 14  # lines of the inspector below the text, however long that is


def extra_text(sample: TokenSample) -> str:
    """Return what reward functions logged about the response: `judge: good   words: 12`."""
    extra = json_columns(sample.extra)
    pairs = extra.items() if isinstance(extra, dict) else [("extra", extra)]
    return "   ".join(visible(f"{name}: {value}") for name, value in pairs)


class SampleView(MountedWhole, Vertical):
    """Text, legend and inspector; the inspector is beside the text where there is room, else below."""

    def __init__(self) -> None:
        super().__init__()
        self.text = TokenText()
        self._folder: RunFolder | None = None
        self._marked = False
        self._scale_beside = False  # the legend is beside the row of channels, not below it

    def compose(self) -> ComposeResult:
        yield Static(id="sample-facts", markup=False)
        extra = Static(id="sample-extra", markup=False)
        extra.display = False
        yield extra
        with Container(id="sample-channels"):
            yield ChannelRow(self.text)
            yield TokenLegend()
        with Container(id="sample-body"):
            yield self.text
            yield TokenInspector()

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
        if (sample := self.text.sample) is not None:
            self.query_one("#sample-facts", Static).update(self.facts(sample, marked=marked))
            extra = self.query_one("#sample-extra", Static)
            extra.update(extra_text(sample))
            extra.display = bool(sample.extra)

    def facts(self, sample: TokenSample, *, marked: bool = False) -> str:
        """Return the sample's iteration and number, its score, KL and length."""
        kl = CHANNELS["kl"].values(sample)
        listed = Sample(
            key=sample.key,
            prompt=sample.prompt,
            completion=sample.completion,
            score=sample.score,
            kl=sum(kl) if kl else float("nan"),
            length=len(sample),
            truncated=sample.truncated,
        )
        return sample_facts(listed, max(self.size.width, 1), marked=marked, iteration=True).strip()

    @property
    def token_text(self) -> str | None:
        """The token under the cursor with all its numbers, as the inspector shows them; None in an empty sample."""
        facts = self.query_one(TokenInspector).facts
        return None if facts is None else facts_text(facts)

    def on_mount(self) -> None:
        self.watch(self.text, "virtual_size", self._share_rows, init=False)

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.width >= _BESIDE, "-beside")
        row = self.query_one(ChannelRow)
        self._scale_beside = event.size.width >= row.whole + _LEGEND
        self.set_class(self._scale_beside, "-scale-beside")
        row.styles.width = row.whole if self._scale_beside else "1fr"
        self._share_rows()
        self.mark(self._marked)

    def _share_rows(self) -> None:
        """Give the inspector the rows that the text leaves free below itself."""
        inspector, legend = self.query_one(TokenInspector), self.query_one(TokenLegend)
        if self.has_class("-beside"):
            inspector.styles.height = "1fr"
            return
        scale = legend.get_content_height(self.size, self.size, self.size.width)
        head = max(1, scale) if self._scale_beside else 1 + scale
        free = self.size.height - 2 - head - self.text.virtual_size.height  # below facts, above the inspector: a line
        inspector.styles.height = max(_LEAST_TALL if self.size.height >= _TALL else _LEAST, free)

    @on(TokenText.Moved)
    def _show_token(self) -> None:
        self.query_one(TokenInspector).show(self.text.sample, self.text.cursor)

    @on(TokenText.ChannelChanged)
    def _show_legend(self) -> None:
        self.query_one(TokenLegend).show(self.text)
        self.query_one(ChannelRow).refresh()
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
    values = channel.values(replace(sample, numbers=columns, ratios=ratios))
    return channel_scale(values, channel.diverging)
