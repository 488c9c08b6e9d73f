"""The samples pane: what the policy wrote, token by token, and why each token was pushed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from trainer.errors import StorageError
from trainer.runs.folder import RunFolder
from workbench.kit.dialog import AnswerScreen, Reply
from workbench.kit.pane import Pane
from workbench.kit.saving import ask_and_save
from workbench.run.bookmarks import Bookmarks
from workbench.run.sample_query import EXAMPLES, Condition, Order
from workbench.run.sample_reader import read_token_sample
from workbench.run.sample_table import Sample, SampleKey, SampleTable, TokenSample
from workbench.run.view import RunView
from workbench.samples.ask_screen import StartingPoint
from workbench.samples.channels import CHANNELS
from workbench.samples.export import export_samples
from workbench.samples.prompt_history import PromptHistoryScreen
from workbench.samples.sample_list import SampleFilter, SampleList, SampleListView
from workbench.samples.sample_view import SampleView
from workbench.samples.token_inspector import facts_text

_ORDERS: tuple[Literal["batch", "score", "kl", "length"], ...] = ("batch", "score", "kl", "length")
_FORMATS = {
    ".jsonl": "JSON lines: all numbers, and state-action pairs",
    ".md": "Markdown: texts, scores, table of tokens",
}
_HELP = """\
What the policy wrote. The list follows the newest iteration until you go to an earlier one; {{samples.whole-run}} \
lists the whole run. {{samples.open}} opens a sample: its tokens are coloured by the channel that you choose, and the \
panel explains the token under the cursor. {{tokens.choose}} on a token shows how its advantage was calculated.

The search takes words and conditions: {examples}.

{channels}"""


class SamplesPane(Pane):
    """Pane with a list of samples, or one of them open.

    ask: reads the run, then opens the dialog in which its models continue from a starting point.
    """

    TITLE = "Samples"
    DOCS = "samples"
    HELP = _HELP.format(
        examples="   ".join(EXAMPLES),
        channels="\n".join(f"{channel.label}: {channel.help}" for channel in CHANNELS.values()),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open", id="samples.open", tooltip="Show the selected sample token by token"),
        Binding("escape", "close", "back", id="samples.close", tooltip="Return to the list"),
        Binding("left", "go(-1)", "earlier", id="samples.earlier", tooltip="Go to the previous iteration"),
        Binding("right", "go(1)", "later", id="samples.later", tooltip="Go to the next iteration"),
        Binding("end", "follow", "newest", id="samples.follow", tooltip="Follow the newest iteration"),
        Binding("slash", "filter", "search", id="samples.filter", tooltip="Search texts and numbers"),
        Binding("o", "order", "order", id="samples.order", tooltip="Sort by score, KL or length, or do not sort"),
        Binding("O", "reverse", "reverse", show=False, id="samples.reverse", tooltip="Reverse the order"),
        Binding("r", "whole_run", "whole run", id="samples.whole-run", tooltip="List all iterations, or one"),
        Binding(
            "right_square_bracket,full_stop",
            "outlier(1)",
            "next outlier",
            show=False,
            id="samples.next-outlier",
            tooltip="Go to the next sample whose score, KL or length is far from the others of its iteration",
        ),
        Binding(
            "left_square_bracket,comma",
            "outlier(-1)",
            "previous outlier",
            show=False,
            id="samples.outlier-before",
            tooltip="Go to the previous sample whose score, KL or length is far from the others of its iteration",
        ),
        Binding("n", "next(1)", "next sample", id="samples.next", tooltip="Open the next sample of the list"),
        Binding(
            "N", "next(-1)", "previous sample", show=False, id="samples.before", tooltip="Open the previous sample"
        ),
        Binding("m", "bookmark", "mark", id="samples.bookmark", tooltip="Mark the sample, or remove its mark"),
        Binding("h", "history", "history", id="samples.history", tooltip="Compare responses to this prompt"),
        Binding("a,p", "ask", "ask", id="samples.ask", tooltip="Ask policy and reference to respond to a prompt now"),
        Binding("f", "try_from_here", "try", id="samples.try", tooltip="Continue from the cursor with another token"),
        Binding("x", "export", "export", id="samples.export", tooltip="Export JSONL or Markdown"),
        Binding("y", "copy", "copy", id="samples.copy", tooltip="Copy prompt and response, or the token in a sample"),
        Binding(
            "Y", "copy_sample", "copy sample", show=False, id="samples.copy-all", tooltip="Copy prompt and response"
        ),
    ]

    def __init__(self, ask: Callable[[StartingPoint], Awaitable[None]], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._ask = ask
        self._listing = SampleListView(self.refresh_bindings)
        self._list = self._listing.sample_list
        self._view = SampleView()
        self._opening = False  # the selected sample is being read, and takes the place of the open one
        self._view.display = False

    def compose(self) -> ComposeResult:
        yield self._listing
        yield self._view

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        listing, selected = self._listing, self._list.selected
        match action:
            case "open" | "filter" | "order" | "reverse" | "whole_run" | "outlier":
                return self.opened is None and (action != "open" or selected is not None)
            case "go":
                return self.opened is None and listing.newest is not None and not listing.whole_run
            case "follow":
                return self.opened is None and not listing.follows
            case "close" | "next" | "try_from_here":
                return self.opened is not None
            case "copy" | "copy_sample":
                return self._current is not None
            case "bookmark" | "history" | "export":
                return listing.table is not None and selected is not None
            case "ask":
                return listing.folder is not None
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

    def action_go(self, by: int) -> None:
        self._listing.go(by)

    def action_follow(self) -> None:
        self.show_iteration(None)

    def action_whole_run(self) -> None:
        self._listing.toggle_whole_run()

    def action_order(self) -> None:
        by = _ORDERS[(_ORDERS.index(self._listing.order.by) + 1) % len(_ORDERS)]
        self._listing.choose(self._listing.filter, Order(by, descending=by != "batch"))

    def action_reverse(self) -> None:
        order = self._listing.order
        self._listing.choose(self._listing.filter, Order(order.by, descending=not order.descending))

    def action_filter(self) -> None:
        self.query_one(SampleFilter).open()

    def action_outlier(self, by: int) -> None:
        if not self._list.next_outlier(by):
            self.confirm("No more outliers of score, KL or length in this direction")

    @on(SampleList.Opened)
    def action_open(self) -> None:
        if (selected := self._list.selected) is not None:
            self.open_sample(selected.key)

    def action_close(self) -> None:
        """Close the open sample and show the list."""
        had_focus = self._view.has_focus_within
        self._view.display = self._opening = False
        self._listing.show_list(True)
        if had_focus:
            self._list.focus()
        self._listing.release()
        self.refresh_bindings()

    def action_next(self, by: int) -> None:
        before, self._list.cursor = self._list.cursor, self._list.cursor + by
        if self._list.cursor != before:
            self.action_open()

    def action_bookmark(self) -> None:
        bookmarks, sample = self._listing.bookmarks, self._current
        if bookmarks is not None and sample is not None:
            self.run_worker(self._mark(bookmarks, sample.key), group="mark")

    async def _mark(self, bookmarks: Bookmarks, key: SampleKey) -> None:
        """Write a mark, or its removal, in a thread: another process may hold the lock."""
        try:
            await asyncio.to_thread(bookmarks.toggle, key)
        except StorageError as error:
            self.warn(str(error))
            return
        if bookmarks is not self._listing.bookmarks:
            return
        self._list.redraw()
        if self.opened is not None and self.opened.key == key:
            self._view.mark(key in bookmarks)
        self._listing.select()

    def action_history(self) -> None:
        sample = self._current
        if self._listing.folder is None or sample is None:
            return

        def chosen(key: SampleKey | None) -> None:
            if key is not None:
                self.open_sample(key)

        self.app.push_screen(PromptHistoryScreen(self._listing.folder, sample), chosen)

    def action_ask(self) -> None:
        folder, selected = self._listing.folder, self._list.selected
        if self.opened is not None:
            self._ask_from(StartingPoint.of_prompt(self.opened))
        elif folder is not None and self._listing.table is not None and selected is not None:
            self._listing.release()
            self.workers.cancel_group(self, "open")  # this takes the place of a sample that is being opened

            async def ask() -> None:
                if (sample := await self._read(folder, selected.key)) is not None:
                    await self._ask(StartingPoint.of_prompt(sample))

            self.run_worker(ask(), group="dialog", exclusive=True)
        else:
            self._ask_from(StartingPoint())

    def action_try_from_here(self) -> None:
        if (opened := self.opened) is not None and len(opened):
            self._ask_from(StartingPoint.at_token(opened, self._view.text.cursor))

    def _ask_from(self, start: StartingPoint) -> None:
        self.run_worker(self._ask(start), group="dialog", exclusive=True)

    def action_copy(self) -> None:
        if self.opened is None or self._opening:
            self.action_copy_sample()
        elif (facts := self._view.inspector.facts) is not None:
            self.copy(facts_text(facts), "the token and its numbers")

    def action_copy_sample(self) -> None:
        if (sample := self._current) is not None:
            self.copy(sample.prompt + sample.completion, "prompt and response")

    def action_export(self) -> None:
        folder, sample, samples = self._listing.folder, self._current, self._list.samples
        if folder is None or sample is None or not isinstance(samples, SampleTable):
            return
        marked = list(self._listing.bookmarks or ())
        name = f"{folder.name}-{sample.key.iteration}-{sample.key.row + 1}"
        sets = {  # by the name of the file
            name: ("this sample", [sample.key]),
            f"{name}-shown": (f"all {len(samples):,} listed", samples.keys),
            f"{name}-marked": (f"all {len(marked):,} marked", marked),
        }

        def save(path: Path, keys: Sequence[SampleKey], suffix: str) -> None:
            if path.exists():
                raise StorageError(f"cannot write '{path}': it exists; choose another name")
            export_samples((read_token_sample(folder, key) for key in keys), path, markdown=suffix == ".md")

        def chosen(file: str | None) -> None:
            if file is not None:
                stem, suffix = file[: file.rindex(".")], file[file.rindex(".") :]
                write = partial(save, keys=sets[stem][1], suffix=suffix)
                ask_and_save(self, "Export to which file?", file, write)

        answers = [
            Reply(stem + suffix, title, text)
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

    def open_sample(self, key: SampleKey) -> None:
        """Read a sample of the run, then show it token by token."""
        folder = self._listing.folder
        if folder is None or self._listing.table is None:
            self.warn("This run saves no tokens. Set run.save_samples = true to keep them.")
            return
        self._listing.hold()
        selected = self._list.selected
        self._opening = selected is not None and selected.key == key
        self.run_worker(self._open(folder, key), group="open", exclusive=True)

    async def _open(self, folder: RunFolder, key: SampleKey) -> None:
        if (sample := await self._read(folder, key)) is None:
            return
        listed, view = self._list, self._view
        self._opening = False
        view.show(folder, sample, marked=sample.key in (self._listing.bookmarks or ()))
        if not view.display:
            had_focus = listed.has_focus
            view.display = True
            self._listing.show_list(False)
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
                if self.opened is None:
                    self._listing.release()
            return None
        return sample if folder == self._listing.folder else None

    @property
    def _current(self) -> Sample | TokenSample | None:
        """The open sample, else the selected one, which counts as open already while it is read."""
        return self._list.selected if self._opening or self.opened is None else self.opened
