"""The list of samples: the end of each prompt and the start of the response, below a heading and a search line."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import ClassVar

from rich.cells import cell_len
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Static
from textual.worker import Worker, get_current_worker

from trainer.plurals import counted
from trainer.runs.folder import RunFolder
from trainer.runs.samples import kept_iterations
from workbench.columns import fit_end
from workbench.kit.cursor_list import BlockList, cursor_bindings
from workbench.kit.drawing import CutText
from workbench.kit.keys import with_keys
from workbench.kit.pane import MountedWhole
from workbench.numbers import number, score_text
from workbench.run.sample_query import Order, Query, parse_query
from workbench.run.sample_reader import RunPart, scan
from workbench.run.sample_table import Sample, SampleKey, SampleTable
from workbench.run.view import RunView
from workbench.samples.browser import NO_SAMPLES_YET, Bookmarks, SampleBrowser, read_iteration
from workbench.text import visible

_COMPLETION = 2  # lines
_ROLES = ("facts", "prompt", *[""] * _COMPLETION, "")  # of each sample's lines, the last one empty
_KEPT = 500  # drawn samples in the cache
_TEMPLATE = 200  # characters at the end of a prompt that may come from its chat template
_TEMPLATE_END = re.compile(r"(<\|[^<|>\s]{1,30}\|>\w*\s*)+\Z")  # the same in every prompt, so no use in a list


def sample_facts(sample: Sample, width: int, *, marked: bool = False, iteration: bool = False) -> str:
    """Return number, score, KL, length and whether it was cut, in full if that fits `width` columns, else abbreviated.

    marked: the sample has a bookmark. iteration: include its iteration.
    """
    score, kl = score_text(sample.score), number(sample.kl, 1)
    place = f"{sample.key.iteration:>5}·{sample.key.row + 1}" if iteration else f"{sample.key.row + 1:>3}"
    if marked:
        place += " ★"
    full = [place, score, f"KL {kl} nats"]
    short = [place, score.removeprefix("score "), f"KL {kl}"]
    if sample.length is not None:
        full.append(counted(sample.length, "token"))
        short.append(f"{sample.length} tok")
    if sample.truncated:
        full.append("✂ cut short")
        short.append("✂")
    text = "   ".join(full)
    return text if cell_len(text) <= width else "  ".join(short)


def sample_lines(sample: Sample, width: int, *, marked: bool = False, iteration: bool = False) -> list[str]:
    """Return the facts, the end of the prompt and the start of the response, in lines of at most `width` columns."""
    # Only combining characters take less than a column, so text beyond these limits is hardly ever visible.
    tail = _TEMPLATE_END.sub("", sample.prompt[-2 * width - _TEMPLATE :])
    prompt = ("…" if len(sample.prompt) > 2 * width + _TEMPLATE else "") + visible(tail)
    facts = sample_facts(sample, width, marked=marked, iteration=iteration)
    lines = [facts, fit_end(prompt, width)]
    wrapped = Content(visible(sample.completion[: 2 * _COMPLETION * width])).wrap(width)
    shown = [line.plain.rstrip() for line in wrapped[:_COMPLETION]]
    if len(wrapped) > _COMPLETION or len(sample.completion) > 2 * _COMPLETION * width:
        shown[-1] = Content(shown[-1] + " …").truncate(width, ellipsis=True).plain
    return (lines + shown + [""] * len(_ROLES))[: len(_ROLES)]


class SampleList(BlockList[Sample]):
    """List of the samples of one or many iterations, with a cursor."""

    CSS_NAME = "sample-list"
    LINES = _ROLES
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "sample-list--facts",
        "sample-list--prompt",
        "sample-list--bar",
        "sample-list--cursor",
    }
    BINDINGS: ClassVar[list[BindingType]] = cursor_bindings("samples", "sample")[:-1]  # end follows the run

    def __init__(self) -> None:
        super().__init__()
        self.marked: Collection[SampleKey] = ()  # those with a bookmark
        self._iterations = False
        self._drawn: dict[int, list[str]] = {}

    @property
    def samples(self) -> Sequence[Sample]:
        """The listed samples, in order."""
        return self._items

    def show(self, samples: Sequence[Sample], *, message: str = "", iterations: bool = False) -> None:
        """Show `samples`, with the cursor on the same sample as before if it is listed, else at the same place.

        message: text to show when there are none. iterations: show the iteration of each.
        """
        before = self.selected
        self._items, self._message, self._iterations = samples, message, iterations
        place = samples.position_of(before.key) if before is not None and isinstance(samples, SampleTable) else None
        self.cursor = self.validate_cursor(self.cursor if place is None else place)
        self.lay_out()

    def next_outlier(self, by: int) -> bool:
        """Move to the next outlier (by = 1) or the one before (by = -1); return False if there is none."""
        places = self._items.outliers() if isinstance(self._items, SampleTable) else []
        found = next((place for place in places[::by] if (place - self.cursor) * by > 0), None)
        if found is not None:
            self.cursor = found
        return found is not None

    def redraw(self) -> None:
        """Draw the samples again, after marks have changed."""
        self._drawn.clear()
        self.refresh()

    def lay_out(self) -> None:
        self._drawn.clear()
        super().lay_out()

    def block(self, index: int, width: int) -> list[str]:
        if index not in self._drawn:
            if len(self._drawn) >= _KEPT:
                self._drawn.clear()
            sample = self._items[index]
            marked = sample.key in self.marked
            self._drawn[index] = sample_lines(sample, width, marked=marked, iteration=self._iterations)
        return self._drawn[index]


class SampleFilter(Input):
    """The search line, hidden until requested; enter keeps the matches, escape shows all samples again."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "clear", "show all", id="sample-filter.clear", tooltip="End the search and show all samples"),
        Binding("down", "submit", "to the list", show=False, id="sample-filter.down", tooltip="Go to the matches"),
    ]

    def __init__(self) -> None:
        super().__init__(placeholder="words, or score>0.5 kl<10 len>20 stop:length is:marked", compact=True)
        self.display = False

    def allow_focus(self) -> bool:
        return bool(self.display)

    def action_clear(self) -> None:
        self.value = ""
        self.post_message(self.Submitted(self, ""))


class SampleListView(MountedWhole, Vertical):
    """Heading, search line and list. `browser` decides what is listed; this reads it in threads and shows it.

    changed: called when other keys may apply than before.
    """

    class ScoresRead(Message):
        """Message with the scores of a whole batch, read from the samples file of `iteration`."""

        def __init__(self, iteration: int, scores: list[float]) -> None:
            super().__init__()
            self.iteration = iteration
            self.scores = scores

    def __init__(self, changed: Callable[[], object]) -> None:
        super().__init__()
        self.browser = SampleBrowser()
        self.sample_list = SampleList()
        self._changed = changed
        self._listed = NO_SAMPLES_YET
        self._heading = ""
        self._is_reading = False

    def compose(self) -> ComposeResult:
        yield CutText(most=3, id="samples-heading")
        yield SampleFilter()
        yield Static(id="samples-problem", markup=False)
        yield self.sample_list

    def on_mount(self) -> None:
        self.query_one("#samples-problem").display = False
        self.sample_list.show([], message=NO_SAMPLES_YET.message)

    def show_list(self, shown: bool) -> None:
        """Show the list, or only the lines above it."""
        self.sample_list.display = shown
        self.set_class(not shown, "-no-list")

    def show_run(self, view: RunView) -> bool:
        """Show the state of the run; return whether the run is a new one."""
        folder = RunFolder(Path(view.started.folder)) if view.started else None
        is_other = folder != self.browser.folder
        if is_other:
            self.workers.cancel_group(self, "scan")
            self.browser = self.browser.for_run(folder, view.history.kind)
            self._show_listed()
            if folder is not None:
                self._read_bookmarks(folder)
        if self.browser.announce(view.samples):
            self.update_list()
        self._show_heading()
        return is_other

    @work(exclusive=True, group="bookmarks")
    async def _read_bookmarks(self, folder: RunFolder) -> None:
        bookmarks = await asyncio.to_thread(Bookmarks, folder)
        if folder != self.browser.folder:
            return
        self.browser.bookmarks = self.sample_list.marked = bookmarks
        if bookmarks.problem:
            self.warn(bookmarks.problem)
        if bookmarks:
            self.sample_list.redraw()
            self.select()

    def show_iteration(self, iteration: int | None) -> None:
        """List the samples of `iteration`; with None follow the newest."""
        self.workers.cancel_group(self, "scan")
        self.browser.choose_iteration(iteration)
        self.update_list()

    def toggle_whole_run(self) -> None:
        """List the samples of all iterations so far, newest first, or those of one iteration again."""
        if self.browser.whole_run:
            self.workers.cancel_group(self, "scan")
            self.browser.leave_whole_run()
            self.update_list()
        elif self.browser.folder is not None:
            self.browser.enter_whole_run()
            self._show_listed()
            self._scan(self.browser.folder)

    def choose(self, query: Query, order: Order) -> None:
        """List the samples that match `query`, in `order`."""
        self.browser.filter, self.browser.order = query, order
        self.select()

    def on_input_changed(self, event: Input.Changed) -> None:
        note, problem = self.query_one("#samples-problem", Static), ""
        try:
            query = parse_query(event.value)
        except ValueError as error:
            problem = str(error)
        else:
            if query != self.browser.filter:
                self.choose(query, self.browser.order)
        note.display = bool(problem)
        note.update(visible(problem))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.sample_list.focus()
        event.input.display = bool(event.input.value.strip())

    def update_list(self) -> None:
        """Show what the browser lists, and read the wanted iteration if it is not listed."""
        folder, iteration = self.browser.folder, self.browser.unread()
        self._show_listed()
        if folder is not None and iteration is not None and not self._is_reading:
            self._is_reading = True
            self._read(folder, iteration)

    @work(exclusive=True, group="select")
    async def select(self) -> None:
        """Apply filter and order."""
        browser, table = self.browser, self.browser.table
        if table is not None:
            browser.take_selection(table, await asyncio.to_thread(browser.selected, table))
        self._show_listed()

    def _show_listed(self) -> None:
        browser, listed = self.browser, self.browser.listed
        if listed is not self._listed:
            self._listed = listed
            self.sample_list.marked = browser.bookmarks or ()
            message = with_keys(visible(listed.message), self.query_one(SampleFilter))
            self.sample_list.show(listed.samples, message=message, iterations=browser.whole_run)
            self._changed()
        self._show_heading()

    def _show_heading(self) -> None:
        if (heading := self.browser.heading) != self._heading:
            self._heading = heading
            self.query_one("#samples-heading", Static).update(heading)

    @work(group="samples")
    async def _read(self, folder: RunFolder, iteration: int) -> None:
        try:
            batch = await asyncio.to_thread(read_iteration, folder, iteration)
        finally:
            self._is_reading = False
        listed = self.browser.take_batch(batch)
        if folder == self.browser.folder and batch.table:
            self.post_message(self.ScoresRead(iteration, batch.table.scores()))
        if listed:
            self.select()
        self.update_list()

    @work(thread=True, exclusive=True, group="scan")
    def _scan(self, folder: RunFolder) -> None:
        worker = get_current_worker()
        for part in scan(folder, kept_iterations(folder), lambda: worker.is_cancelled):
            self.call_later(self._add_part, part, worker)

    def _add_part(self, part: RunPart, worker: Worker[None]) -> None:
        """List the samples of this part too, and report the first file that could not be read."""
        if not worker.is_cancelled and self.browser.take_part(part):
            if problems := part.problems:
                more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
                self.warn(problems[0] + more)
            self.select()
