"""The list of samples below a heading and a search line: one iteration or the whole run, searched and sorted."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

from rich.cells import cell_len
from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Static
from textual.worker import Worker, get_current_worker

from trainer.errors import StorageError, counted
from trainer.events import SamplesWritten
from trainer.runs.folder import RunFolder
from trainer.runs.listing import PPO
from trainer.runs.samples import kept_iterations
from workbench.kit.cursor_list import BlockList, FilterField, cursor_bindings
from workbench.kit.drawing import CutText
from workbench.kit.keys import bind, hidden_key, with_keys
from workbench.kit.pane import MountedWhole
from workbench.run.bookmarks import Bookmarks
from workbench.run.sample_query import Order, Query, parse_query
from workbench.run.sample_reader import RunPart, preview_samples, read_batch, scan
from workbench.run.sample_table import Sample, SampleKey, SampleTable, TokenSample
from workbench.run.view import RunView
from workbench.text import fit_end, number, packed, score_text, visible

NO_SAMPLES_YET = "No samples yet. They appear after the first iteration."
_COMPLETION = 2  # lines
_GAP = "   "
_ROLES = ("facts", "prompt", *[""] * _COMPLETION, "")  # of each sample's lines, the last one empty
_ORDERS: tuple[Literal["batch", "score", "kl", "length"], ...] = ("batch", "score", "kl", "length")
_FAR = "sample whose score, KL or length is far from the others of its iteration"
_TEMPLATE = 200  # characters at the end of a prompt that may come from its chat template
_TEMPLATE_END = re.compile(r"(<\|[^<|>\s]{1,30}\|>\w*\s*)+\Z")  # the same in every prompt, so no use in a list
_TURN = re.compile(r"<\|[^<|>\s]{1,30}\|>(?:\w+\n)?\s*")  # what begins or ends a turn of a chat


def sample_facts(
    sample: Sample | TokenSample, *, marked: bool = False, iteration: bool = False, short: bool = False
) -> str:
    """Return number, score, KL, length and whether it was cut, in full or abbreviated.

    marked: the sample has a bookmark. iteration: include its iteration.
    """
    place = f"{sample.key.iteration:>5}·{sample.key.row + 1}" if iteration else f"{sample.key.row + 1:>3}"
    score, kl = score_text(sample.score), f"KL {number(sample.kl, 1):>4}"
    facts = [place + " ★" * marked, score.removeprefix("score ") if short else score, kl if short else f"{kl} nats"]
    if sample.length is not None:
        facts.append(f"{sample.length:>3} tok" if short else f"{counted(sample.length, 'token'):>10}")
    if sample.truncated:
        facts.append("✂" if short else "✂ cut short")
    return ("  " if short else "   ").join(facts)


@lru_cache(maxsize=500)
def sample_lines(sample: Sample, width: int, *, marked: bool = False, iteration: bool = False) -> Sequence[str]:
    """Return the facts, the end of the last turn and the start of the response, in lines of at most `width` columns."""
    # Only combining characters take less than a column, so text beyond these limits is hardly ever visible.
    tail = _TEMPLATE_END.sub("", sample.prompt[-2 * width - _TEMPLATE :])
    *turns, last = _TURN.split(tail)
    prompt = ("…" if len(sample.prompt) > 2 * width + _TEMPLATE and not turns else "") + visible(last)
    facts = sample_facts(sample, marked=marked, iteration=iteration)
    if cell_len(facts) > width:
        facts = sample_facts(sample, marked=marked, iteration=iteration, short=True)
    lines = [facts, fit_end(prompt, width)]
    wrapped = Content(visible(sample.completion[: 2 * _COMPLETION * width])).wrap(width)
    shown = [line.plain.rstrip() for line in wrapped[:_COMPLETION]]
    if len(wrapped) > _COMPLETION or len(sample.completion) > 2 * _COMPLETION * width:
        shown[-1] = Content(shown[-1] + " …").truncate(width, ellipsis=True).plain
    return tuple(lines + shown + [""] * len(_ROLES))[: len(_ROLES)]


class SampleList(BlockList[Sample]):
    """List of the samples of one or many iterations, with a cursor."""

    CSS_NAME = "sample-list"
    LINES = _ROLES
    ITEM_HEIGHT = len(LINES)
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"sample-list--{role}" for role in ("facts", "prompt", "bar", "cursor")}
    BINDINGS: ClassVar[list[BindingType]] = cursor_bindings("samples", "sample")[:-1]  # end follows the run

    def __init__(self) -> None:
        super().__init__()
        self.marked: Collection[SampleKey] = ()  # those with a bookmark
        self._iterations = False

    def show(self, samples: Sequence[Sample], *, message: str = "", iterations: bool = False) -> None:
        """Show `samples`, with the cursor on the same sample as before if it is listed, else at the same place.

        message: text to show when there are none. iterations: show the iteration of each.
        """
        before = self.selected
        self.items, self._message, self._iterations = samples, message, iterations
        place = samples.position_of(before.key) if before is not None and isinstance(samples, SampleTable) else None
        self.cursor = self.validate_cursor(self.cursor if place is None else place)
        self.lay_out()

    def block(self, index: int, width: int) -> Sequence[str]:
        sample = self.items[index]
        return sample_lines(sample, width, marked=sample.key in self.marked, iteration=self._iterations)


class SampleListView(MountedWhole, Vertical):
    """Heading, search line and list.

    It lists the newest iteration by default, or a chosen one, or the whole run, and reads the files in threads.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("left", "go(-1)", "earlier", "samples.earlier", "Go to the previous iteration"),
        bind("right", "go(1)", "later", "samples.later", "Go to the next iteration"),
        bind("end", "follow", "newest", "samples.follow", "Follow the newest iteration"),
        bind("slash", "filter", "search", "samples.filter", "Search texts and numbers"),
        bind("escape", "clear", "show all", "sample-filter.clear", "End the search and show all samples"),
        hidden_key("down", "leave", "to the list", "sample-filter.down", "Go to the matches"),
        bind("o", "order", "order", "samples.order", "Sort by score, KL or length, or do not sort"),
        hidden_key("O", "reverse", "reverse", "samples.reverse", "Reverse the order"),
        bind("r", "whole_run", "whole run", "samples.whole-run", "List all iterations, or one"),
        hidden_key(
            "right_square_bracket,full_stop",
            "outlier(1)",
            "next outlier",
            "samples.next-outlier",
            f"Go to the next {_FAR}",
        ),
        hidden_key(
            "left_square_bracket,comma",
            "outlier(-1)",
            "previous outlier",
            "samples.outlier-before",
            f"Go to the previous {_FAR}",
        ),
    ]

    class ScoresRead(Message):
        """Message with the scores of a whole batch, read from the samples file of `iteration`."""

        def __init__(self, iteration: int, scores: list[float]) -> None:
            super().__init__()
            self.iteration = iteration
            self.scores = scores

    def __init__(self) -> None:
        super().__init__()
        self.sample_list = SampleList()
        self.folder: RunFolder | None = None
        self.bookmarks: Bookmarks | None = None  # until they are read
        self.order = Order()
        self.table: SampleTable | None = None  # all samples before the filter; None for previews
        self._newest: SamplesWritten | None = None
        self._filter: Query = ()
        self._whole_run = False
        self._chosen: int | None = None  # the iteration to list; None to follow the newest
        self._held = False  # a sample is open, so the list does not follow
        self._shown: int | None = None  # the listed iteration
        self._summary = self._progress = ""
        self._is_reading = False

    def compose(self) -> ComposeResult:
        yield CutText(most=4, id="samples-heading")
        yield FilterField("words, or score>0.5 kl<10 len>20 stop:length is:marked")
        yield Static(id="samples-problem", markup=False)
        yield self.sample_list

    def on_mount(self) -> None:
        self.query_one("#samples-problem").display = False
        self.sample_list.show([], message=NO_SAMPLES_YET)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        match action:
            case "go":
                return self._newest is not None and not self._whole_run
            case "follow":
                return self._chosen is not None or self._whole_run
            case "clear":
                return self.query_one(FilterField).display
            case "leave":
                return self.query_one(FilterField).has_focus
        return True

    def show_run(self, view: RunView) -> bool:
        """Show the state of the run; return whether the run is a new one. Filter and order stay."""
        folder = RunFolder(Path(view.started.folder)) if view.started else None
        is_other = folder != self.folder
        if is_other:
            self.workers.cancel_group(self, "scan")
            self.folder, self.bookmarks, self._newest, self.table = folder, None, None, None
            self._whole_run, self._chosen, self._held, self._shown = False, None, False, None
            kind = view.history.kind
            none = NO_SAMPLES_YET if kind == PPO else f"A {kind} run learns from pairs and writes no samples."
            self._list([], "", none)
            if folder is not None:
                self._read_bookmarks(folder)
        if view.samples is not None and view.samples is not self._newest:
            self._newest = view.samples
            if self._shown == self._newest.iteration:
                self._shown = None  # a resumed run repeated it
            self._update()
        self._show_heading()
        return is_other

    @work(exclusive=True, group="bookmarks")
    async def _read_bookmarks(self, folder: RunFolder) -> None:
        bookmarks = await asyncio.to_thread(Bookmarks, folder)
        if folder == self.folder:
            self.bookmarks = self.sample_list.marked = bookmarks
            if bookmarks.problem:
                self.warn(bookmarks.problem)
            self.sample_list.refresh()
            self.select()

    def show_iteration(self, iteration: int | None) -> None:
        """List the samples of `iteration`; with None follow the newest."""
        if self._whole_run:
            self.workers.cancel_group(self, "scan")
            self._whole_run, self._progress = False, ""
            self.table = self._shown = None
        self._chosen, self._held = iteration, False
        self._update()

    def hold(self, held: bool) -> None:
        """Keep the listed iteration while a sample is open, or follow the newest again."""
        if held != self._held:
            self._held = held
            self._update()

    async def action_go(self, by: int) -> None:
        """List the previous (by < 0) or next iteration whose samples are saved."""
        newest, wanted, folder = self._newest, self._wanted, self.folder
        if newest is not None and wanted is not None and folder is not None:
            saved = await asyncio.to_thread(kept_iterations, folder)
            kept = sorted({newest.iteration, *(number for number in saved if number < newest.iteration)})
            place = bisect_left(kept, wanted) - 1 if by < 0 else bisect_right(kept, wanted)
            if 0 <= place < len(kept):
                self.show_iteration(None if kept[place] == newest.iteration else kept[place])

    def action_follow(self) -> None:
        self.show_iteration(None)

    def action_whole_run(self) -> None:
        """List the samples of all iterations so far, newest first, or those of one iteration again."""
        if self._whole_run:
            self.show_iteration(self._chosen)
        elif self.folder is not None:
            self._whole_run, self.table, self._progress = True, None, "reading…"
            self._list([], "", "Reading the run…")
            self._scan(self.folder)

    def action_filter(self) -> None:
        self.query_one(FilterField).open()

    def action_clear(self) -> None:
        self.query_one(FilterField).clear_filter()

    def action_leave(self) -> None:
        self.query_one(FilterField).leave()

    def action_order(self) -> None:
        by = _ORDERS[(_ORDERS.index(self.order.by) + 1) % len(_ORDERS)]
        self._choose(self._filter, Order(by, descending=by != "batch"))

    def action_reverse(self) -> None:
        self._choose(self._filter, Order(self.order.by, descending=not self.order.descending))

    def action_outlier(self, by: int) -> None:
        """Move to the next outlier (by = 1) or the one before (by = -1)."""
        samples, cursor = self.sample_list.items, self.sample_list.cursor
        places = samples.outliers() if isinstance(samples, SampleTable) else []
        found = next((place for place in places[::by] if (place - cursor) * by > 0), None)
        if found is None:
            self.confirm("No more outliers of score, KL or length in this direction")
        else:
            self.sample_list.cursor = found

    def on_input_changed(self, event: Input.Changed) -> None:
        note, problem = self.query_one("#samples-problem", Static), ""
        try:
            query = parse_query(event.value)
        except ValueError as error:
            problem = str(error)
        else:
            if query != self._filter:
                self._choose(query, self.order)
        note.display = bool(problem)
        note.update(visible(problem))

    def _choose(self, query: Query, order: Order) -> None:
        """List the samples that match `query`, in `order`."""
        self._filter, self.order = query, order
        self.select()
        self._show_heading()

    def _update(self) -> None:
        """Read the wanted iteration if it is not listed; previews are listed at once."""
        newest, wanted = self._newest, self._wanted
        if self.folder is not None and wanted not in (None, self._shown) and not self._whole_run:
            if newest is not None and wanted == newest.iteration and not newest.path:
                samples = preview_samples(newest)
                self._shown, self.table = wanted, None
                count = f"first {len(samples)} of {counted(newest.rows, 'sample')}; no files are saved"
                self._list(samples, count)
            elif not self._is_reading:
                self._is_reading = True
                self._read(self.folder, wanted)
        self._show_heading()

    @work(group="samples")
    async def _read(self, folder: RunFolder, iteration: int) -> None:
        table, problem = None, ""
        try:
            table = await asyncio.to_thread(read_batch, folder, iteration)
        except StorageError as error:
            problem = str(error)
        finally:
            self._is_reading = False
        if folder == self.folder:
            if table:
                self.post_message(self.ScoresRead(iteration, table.scores()))
            if not self._whole_run and (iteration == self._wanted or (self._chosen is None and not self._held)):
                self._shown, self.table = iteration, table
                self._list([], "", problem) if table is None else self.select()
        self._update()

    @work(exclusive=True, group="select")
    async def select(self) -> None:
        """Apply filter and order."""
        if (table := self.table) is None:
            return

        def select() -> SampleTable:
            found = table.select(self._filter, self.order, frozenset(self.bookmarks or ()))
            found.outliers()  # which the keys that go to them should not wait for
            return found

        found = await asyncio.to_thread(select)
        if table is self.table:
            count = found.summary(of=len(table) if len(found) < len(table) else 0)
            no_match = "No matching samples. Press {sample-filter.clear} in the search to show all."
            message = no_match if len(table) else "No samples."
            self._list(found, "   ".join(filter(None, [count, self._progress])), message)

    @work(thread=True, exclusive=True, group="scan")
    def _scan(self, folder: RunFolder) -> None:
        worker = get_current_worker()
        for part in scan(folder, kept_iterations(folder), lambda: worker.is_cancelled):
            self.call_later(self._add_part, part, worker)

    def _add_part(self, part: RunPart, worker: Worker[None]) -> None:
        """List the samples of this part below those read before, and report the first file that could not be read."""
        if worker.is_cancelled or not self._whole_run:
            return
        self._progress = "" if part.done == part.total else f"{part.done:,} of {part.total:,} iterations read"
        self.table = part.table if self.table is None else SampleTable.joined([self.table, part.table])
        if problems := part.problems:
            self.warn(problems[0] + f" (and {len(problems) - 1} more)" * (len(problems) > 1))
        self.select()

    @property
    def _wanted(self) -> int | None:
        """The iteration to list; None where there is none yet."""
        if self._chosen is not None or self._newest is None:
            return self._chosen
        return self._shown if self._held and self._shown is not None else self._newest.iteration

    def _list(self, samples: Sequence[Sample], summary: str, message: str = "") -> None:
        """List `samples`; summary: of them, for the heading. message: shown when there are none."""
        self._summary, self.sample_list.marked = summary, self.bookmarks or ()
        message = with_keys(visible(message), self)
        self.sample_list.show(samples, message=message, iterations=self._whole_run)
        self.refresh_bindings()
        self._show_heading()

    def _show_heading(self) -> None:
        """Show the iteration, the number of samples with their means, and the order."""
        newest, heading = self._newest, ""
        iteration = self._shown if self._chosen is None and self._shown is not None else self._wanted
        if self._whole_run:
            heading = f"whole run{_GAP}{self._summary}"
        elif newest is not None and iteration is not None:
            place = "newest" if iteration == newest.iteration else f"newest is {newest.iteration}"
            heading = f"iteration {iteration} · {place}" + f"{_GAP}{self._summary}" * (iteration == self._shown)
        if self.order != Order():
            by = "KL" if self.order.by == "kl" else self.order.by
            heading += f"{_GAP}by {by} {'↓' if self.order.descending else '↑'}"
        lines = packed(heading.split(_GAP), self.size.width or 80, len(_GAP))  # no fact is torn in two
        self.query_one("#samples-heading", Static).update("\n".join(map(_GAP.join, lines)))

    on_resize = _show_heading
