"""One open sample of the list: read in a thread, marked, copied, exported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rich.style import Style
from textual import on, work
from textual.worker import Worker, WorkerState

from trainer.errors import StorageError
from trainer.runs.folder import RunFolder
from workbench.run.sample_reader import read_channel_columns, read_token_sample
from workbench.run.sample_records import SampleKey, TokenSample
from workbench.run.sample_table import SampleTable
from workbench.samples.advantage_screen import AdvantageScreen
from workbench.samples.channels import CHANNELS, Channel
from workbench.samples.export import check_place, copy_text, export_jsonl, export_markdown
from workbench.samples.export_screen import ExportChoice, ExportScreen
from workbench.samples.picture import save_picture
from workbench.samples.reading import SamplesReading
from workbench.samples.sample_list import SampleList
from workbench.samples.sample_view import SampleView
from workbench.samples.scales import ChannelScale, channel_scale
from workbench.samples.token_text import TokenText
from workbench.text import visible

_PICTURES = ("svg", "html")


class _Read(NamedTuple):
    """One sample that a thread read, or why it could not."""

    folder: RunFolder
    sample: TokenSample | None
    problem: str
    then: Callable[[TokenSample], object]


class _Measured(NamedTuple):
    """The scale of a channel over a whole batch."""

    iteration: int
    channel: str
    scale: ChannelScale


class SamplesOpening(SamplesReading):
    """Pane that can show one sample token by token in place of the list; the list keeps its iteration meanwhile."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._held = False  # the list follows the newest iteration again once the sample is closed

    @property
    def opened(self) -> TokenSample | None:
        """The open sample; None while the list is shown."""
        view = self.query_one(SampleView)
        return view.text.sample if view.display else None

    def open_sample(self, key: SampleKey) -> None:
        """Read a sample of the run, then show it token by token."""
        if self.table is None:
            self.complain("its tokens are not on disk: a run keeps them with run.save_samples = true")
            return
        self._held = self.hold() or self._held
        self.read_then(key, self._show_sample)

    def read_then(self, key: SampleKey, then: Callable[[TokenSample], object]) -> None:
        """Read a sample in a thread, then call `then` with it, unless another one is requested meanwhile."""
        if self.folder is not None:
            self._read_sample(self.folder, key, then)

    def show_iteration(self, iteration: int | None) -> None:
        self._held = False
        self.close_sample()
        super().show_iteration(iteration)

    def close_sample(self) -> None:
        """Close the open sample and show the list."""
        listed, view = self.query_one(SampleList), self.query_one(SampleView)
        had_focus = view.has_focus_within
        listed.display, view.display = True, False
        if had_focus:
            listed.focus()
        if self._held:
            self._held = False
            self.let_go()
        self.refresh_keys()

    def forget(self) -> None:
        super().forget()
        self._held = False
        self.close_sample()

    def toggle_bookmark(self) -> None:
        """Mark the open or selected sample, or remove its mark."""
        opened, selected = self.opened, self.query_one(SampleList).selected
        key = opened.key if opened is not None else selected.key if selected is not None else None
        if self.bookmarks is None or key is None:
            return
        try:
            marked = self.bookmarks.toggle(key)
        except StorageError as error:
            self.complain(str(error))
            return
        self.query_one(SampleList).redraw()
        if opened is not None:
            self.query_one(SampleView).mark(marked)
        self.reselect()

    def copy(self) -> None:
        """Copy prompt and response to the terminal's clipboard."""
        if (opened := self.opened) is not None:
            self.app.copy_to_clipboard(copy_text(opened))
            self.notify("copied, where the terminal lets a program do that")

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Show the sample or the scale that a thread read; Textual also calls the base class's handler."""
        if event.state is not WorkerState.SUCCESS:
            return
        match event.worker.result:
            case _Read(folder, sample, problem, then) if folder == self.folder:
                if sample is None:
                    self.complain(problem)
                else:
                    then(sample)
            case _Measured(iteration, channel, scale):
                if self.opened is not None and self.opened.key.iteration == iteration:
                    self.query_one(SampleView).text.set_scale(channel, scale)

    @work(thread=True, exclusive=True, group="open")
    def _read_sample(self, folder: RunFolder, key: SampleKey, then: Callable[[TokenSample], object]) -> _Read:
        try:
            return _Read(folder, read_token_sample(folder, key), "", then)
        except StorageError as error:
            return _Read(folder, None, str(error), then)

    def _show_sample(self, sample: TokenSample) -> None:
        listed, view = self.query_one(SampleList), self.query_one(SampleView)
        before = view.text.sample
        if before is not None and before.key.iteration != sample.key.iteration:
            for channel in CHANNELS:
                view.text.set_scale(channel, None)  # these belong to another batch
        view.show(sample, marked=self.bookmarks is not None and sample.key in self.bookmarks)
        if not view.display:
            had_focus = listed.has_focus
            listed.display, view.display = False, True
            if had_focus or self.app.focused is None:
                view.text.focus()
        self.refresh_keys()

    # Requests of the open sample

    @on(TokenText.Chosen)
    def _explain(self, message: TokenText.Chosen) -> None:
        def closed(index: int | None) -> None:
            if index is not None:
                self.query_one(SampleView).text.cursor = index

        if (opened := self.opened) is not None:
            self.app.push_screen(AdvantageScreen(opened, message.index), closed)

    @on(TokenText.ScaleRequested)
    def _rescale(self, message: TokenText.ScaleRequested) -> None:
        text = self.query_one(SampleView).text
        if text.is_shared(message.channel):
            text.set_scale(message.channel, None)
        elif self.folder is not None and (opened := self.opened) is not None:
            self._measure(self.folder, opened, CHANNELS[message.channel])

    @work(thread=True, exclusive=True, group="scale")
    def _measure(self, folder: RunFolder, sample: TokenSample, channel: Channel) -> _Measured | None:
        iteration = sample.key.iteration
        try:
            columns = read_channel_columns(folder, iteration, channel.columns)
        except StorageError:
            return None
        ratios = [(ratio,) for ratio in columns.pop("ratios", ())]
        values = channel.values(replace(sample, numbers=columns, ratios=ratios))
        return _Measured(iteration, channel.name, channel_scale(values, channel.diverging))

    # Export

    def export(self) -> None:
        """Ask what to write, in which format and where, and write it."""
        selected, folder = self.query_one(SampleList).selected, self.folder
        key = self.opened.key if self.opened is not None else selected.key if selected is not None else None
        if folder is None or key is None:
            return
        listed = self.query_one(SampleList).samples
        marked = list(self.bookmarks or ())

        async def write(choice: ExportChoice) -> str:
            keys = marked if choice.what == "marked" else [key]
            if choice.what == "shown":
                keys = listed.keys if isinstance(listed, SampleTable) else [sample.key for sample in listed]
            try:
                if choice.format in _PICTURES:
                    await asyncio.to_thread(check_place, choice.path)
                else:
                    told = await asyncio.to_thread(_export, folder, keys, choice)
                    self.notify(visible(told), markup=False)
            except StorageError as error:
                return str(error)
            return ""

        def chosen(choice: ExportChoice | None) -> None:
            if choice is not None and choice.format in _PICTURES:  # drawn from the screen, once the dialog is closed
                self.read_then(key, lambda sample: self._show_and_draw(sample, choice.path))

        counts = {"this": 1, "shown": len(listed), "marked": len(marked)}
        name = f"{folder.name}-{key.iteration}-{key.row + 1}"
        self.app.push_screen(ExportScreen(counts, Path.cwd(), name, write), chosen)  # type: ignore[arg-type]

    def _show_and_draw(self, sample: TokenSample, path: Path) -> None:
        if self.opened is None or self.opened.key != sample.key:
            self._show_sample(sample)
        self.call_after_refresh(self._draw, sample, path)

    def _draw(self, sample: TokenSample, path: Path) -> None:
        """Save a picture of the text as coloured on the screen, once the text is laid out."""
        view = self.query_one(SampleView)
        if not view.text.is_laid_out:
            self.call_after_refresh(self._draw, sample, path)
            return
        lines = [[(segment.text, segment.style or Style()) for segment in strip] for strip in view.picture()]
        try:
            written = save_picture(path, lines, view.facts(sample), view.text.size.width)
        except StorageError as error:
            self.complain(str(error))
        else:
            self.notify(visible(f"written to {written}"), markup=False)


def _export(folder: RunFolder, keys: Collection[SampleKey], choice: ExportChoice) -> str:
    """Write the samples; return a message with their number and the path. Raises StorageError."""
    write = export_jsonl if choice.format == "jsonl" else export_markdown
    path = write((read_token_sample(folder, key) for key in keys), choice.path)
    count = len(keys)
    return f"{count:,} {'sample' if count == 1 else 'samples'} written to {path}"
