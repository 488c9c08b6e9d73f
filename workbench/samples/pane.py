"""The samples pane: what the policy wrote, token by token, and why each token was pushed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import BindingType

from trainer.errors import StorageError
from trainer.runs.folder import RunFolder
from workbench.kit.dialog import AnswerScreen, Reply
from workbench.kit.keys import bind, hidden_key
from workbench.kit.pane import Pane
from workbench.kit.saving import ask_and_save
from workbench.run.sample_query import EXAMPLES, Condition
from workbench.run.sample_reader import read_token_sample
from workbench.run.sample_table import Sample, SampleKey, SampleTable, TokenSample
from workbench.run.view import RunView
from workbench.samples.channels import CHANNELS
from workbench.samples.export import export_samples
from workbench.samples.prompt_history import PromptHistoryScreen
from workbench.samples.sample_list import SampleList, SampleListView
from workbench.samples.sample_view import SampleView, facts_text

Ask = Callable[[TokenSample | None, int | None], Awaitable[None]]

_WITH_LIST = 50  # lines from which the list stays above an open sample
_FORMATS = {
    "jsonl": "JSON lines: all numbers, and state-action pairs",
    "md": "Markdown: texts, scores, table of tokens",
}
_HELP = """\
What the policy wrote. The list follows the newest iteration until you go to an earlier one; {{samples.whole-run}} \
lists the whole run. {{samples.open}} opens a sample: its tokens are coloured by the channel that you choose, and the \
panel explains the token under the cursor. {{tokens.choose}} on a token shows how its advantage was calculated.

The search takes words and conditions: {examples}.

{channels}"""


class SamplesPane(Pane):
    """Pane with a list of samples, or one of them open.

    ask: called with a sample and the token to go on from, None for its prompt; None for an own prompt. Opens the dialog
    in which the run's models write.
    """

    TITLE = "Samples"
    DOCS = "samples"
    HELP = _HELP.format(
        examples="   ".join(EXAMPLES),
        channels="\n".join(f"{channel.label}: {channel.help}" for channel in CHANNELS.values()),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("enter", "open", "open", "samples.open", "Show the selected sample token by token"),
        bind("escape", "close", "back", "samples.close", "Return to the list"),
        bind("n", "next(1)", "next sample", "samples.next", "Open the next sample of the list"),
        hidden_key("N", "next(-1)", "previous sample", "samples.before", "Open the previous sample"),
        bind("m", "bookmark", "mark", "samples.bookmark", "Mark the sample, or remove its mark"),
        bind("h", "history", "history", "samples.history", "Compare responses to this prompt"),
        bind("a,p", "ask", "ask", "samples.ask", "Ask policy and reference to respond to a prompt now"),
        bind("f", "try_from_here", "try", "samples.try", "Continue from the cursor with another token"),
        bind("x", "export", "export", "samples.export", "Export JSONL or Markdown"),
        bind("y", "copy", "copy", "samples.copy", "Copy prompt and response, or the token in a sample"),
        hidden_key("Y", "copy_sample", "copy sample", "samples.copy-all", "Copy prompt and response"),
    ]

    def __init__(self, ask: Ask, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._ask = ask
        self._listing = SampleListView()
        self._list = self._listing.sample_list
        self._view = SampleView()
        self._opening = False  # the selected sample is being read, and takes the place of the open one
        self._view.display = False

    def compose(self) -> ComposeResult:
        yield self._listing
        yield self._view

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.height >= _WITH_LIST, "-tall")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        match action:
            case "open":
                return (self.opened is None or self._list.has_focus) and self._list.selected is not None
            case "close" | "next" | "try_from_here":
                return self.opened is not None
            case "copy" | "copy_sample":
                return self._current is not None
            case "bookmark" | "history" | "export":
                return self._listing.table is not None and self._list.selected is not None
            case "ask":
                return self._listing.folder is not None
        return True

    @property
    def opened(self) -> TokenSample | None:
        """The open sample; None while the list is shown."""
        return self._view.text.sample if self._view.display else None

    def take_focus(self) -> None:
        (self._list if self.opened is None else self._view.text).focus()

    def show_run(self, view: RunView) -> None:
        if self._listing.show_run(view):
            self.action_close()

    def show_iteration(self, iteration: int | None) -> None:
        """List the samples of `iteration`; with None follow the newest."""
        self._listing.show_iteration(iteration)
        self.action_close()

    @on(SampleList.Opened)
    def action_open(self) -> None:
        if (selected := self._list.selected) is not None:
            self.open_sample(selected.key)

    def action_close(self) -> None:
        """Close the open sample and show the list."""
        had_focus = self._view.has_focus_within
        self._view.display = self._opening = False
        self._listing.remove_class("-no-list")
        if had_focus:
            self._list.focus()
        self._listing.hold(False)
        self.refresh_bindings()

    def action_next(self, by: int) -> None:
        before, self._list.cursor = self._list.cursor, self._list.cursor + by
        if self._list.cursor != before:
            self.action_open()

    @work(group="mark")
    async def action_bookmark(self) -> None:
        """Write a mark, or its removal, in a thread: another process may hold the lock."""
        bookmarks, sample = self._listing.bookmarks, self._current
        if bookmarks is None or sample is None:
            return
        try:
            await asyncio.to_thread(bookmarks.toggle, sample.key)
        except StorageError as error:
            self.warn(str(error))
            return
        if bookmarks is self._listing.bookmarks:
            self._list.refresh()
            if self.opened is not None and self.opened.key == sample.key:
                self._view.mark(sample.key in bookmarks)
            self._listing.select()

    def action_history(self) -> None:
        if self._listing.folder is not None and self._current is not None:
            self.app.push_screen(PromptHistoryScreen(self._listing.folder, self._current), self.open_sample)

    @work(group="dialog", exclusive=True)
    async def action_ask(self) -> None:
        folder, sample, selected = self._listing.folder, self.opened, self._list.selected
        if sample is None and folder is not None and self._listing.table is not None and selected is not None:
            self._listing.hold(False)
            self.workers.cancel_group(self, "open")  # this takes the place of a sample that is being opened
            if (sample := await self._read(folder, selected.key)) is None:
                return
        await self._ask(sample, None)

    @work(group="dialog", exclusive=True)
    async def action_try_from_here(self) -> None:
        if self.opened:
            await self._ask(self.opened, self._view.text.cursor)

    def action_copy(self) -> None:
        if self.opened is None or self._opening:
            self.action_copy_sample()
        elif (facts := self._view.facts) is not None:
            self.copy(facts_text(facts), "the token and its numbers")

    def action_copy_sample(self) -> None:
        if (sample := self._current) is not None:
            self.copy(sample.prompt + sample.completion, "prompt and response")

    def action_export(self) -> None:
        folder, sample, samples = self._listing.folder, self._current, self._list.items
        if folder is None or sample is None or not isinstance(samples, SampleTable):
            return
        marked = list(self._listing.bookmarks or ())
        name = f"{folder.name}-{sample.key.iteration}-{sample.key.row + 1}"
        sets = {  # by the name of the file
            name: ("this sample", [sample.key]),
            f"{name}-shown": (f"all {len(samples):,} listed", samples.keys),
            f"{name}-marked": (f"all {len(marked):,} marked", marked),
        }

        def save(path: Path, stem: str, *, markdown: bool) -> None:
            if path.exists():
                raise StorageError(f"cannot write '{path}': it exists; choose another name")
            export_samples((read_token_sample(folder, key) for key in sets[stem][1]), path, markdown=markdown)

        def chosen(file: str | None) -> None:
            if file is not None:
                stem, _, suffix = file.rpartition(".")
                ask_and_save(self, "Export to which file?", file, partial(save, stem=stem, markdown=suffix == "md"))

        answers = [
            Reply(f"{stem}.{suffix}", title, text)
            for stem, (title, keys) in sets.items()
            for suffix, text in _FORMATS.items()
            if keys
        ]
        self.app.push_screen(AnswerScreen("Export samples", answers), chosen)

    async def find(self, words: str, most: int) -> list[Sample]:
        """Return the first `most` of the samples that the list has read, filtered or not, with all of `words`."""
        if (table := self._listing.table) is None:
            return []
        query = tuple(Condition("either", "contains", word) for word in words.split())
        return await asyncio.to_thread(lambda: list(table.select(query, self._listing.order)[:most]))

    def open_sample(self, key: SampleKey | None) -> None:
        """Read a sample of the run, then show it token by token; None: do nothing."""
        folder = self._listing.folder
        if key is None:
            return
        if folder is None or self._listing.table is None:
            self.warn("This run saves no tokens. Set run.save_samples = true to keep them.")
            return
        self._listing.hold(True)
        self._opening = self._list.selected is not None and self._list.selected.key == key
        self._open(folder, key)

    @work(group="open", exclusive=True)
    async def _open(self, folder: RunFolder, key: SampleKey) -> None:
        if (sample := await self._read(folder, key)) is None:
            return
        view, self._opening = self._view, False
        view.show(folder, sample, marked=sample.key in (self._listing.bookmarks or ()))
        if not view.display:
            had_focus = self._list.has_focus
            view.display = True
            self._listing.add_class("-no-list")
            if had_focus or self.app.focused is None:
                view.text.focus()
        self.refresh_bindings()

    async def _read(self, folder: RunFolder, key: SampleKey) -> TokenSample | None:
        """Read a sample; return None, with a warning, if that fails, and without one if another run is shown by now."""
        try:
            sample = await asyncio.to_thread(read_token_sample, folder, key)
        except StorageError as error:
            if folder == self._listing.folder:
                self._opening = False
                self.warn(str(error))
                self._listing.hold(self.opened is not None)
            return None
        return sample if folder == self._listing.folder else None

    @property
    def _current(self) -> Sample | TokenSample | None:
        """The open sample, else the selected one, which counts as open already while it is read."""
        return self._list.selected if self._opening or self.opened is None else self.opened
