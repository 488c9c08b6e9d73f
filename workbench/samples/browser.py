"""Choice of the samples that are listed: one iteration or all of them, filtered and sorted. Knows no screen."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from typing import NamedTuple

from trainer.errors import StorageError
from trainer.events import SamplesWritten
from trainer.plurals import counted
from trainer.runs.folder import RunFolder
from trainer.runs.listing import PPO
from trainer.runs.samples import kept_iterations
from workbench.run.sample_query import Order, Query
from workbench.run.sample_reader import preview_samples, read_batch
from workbench.run.sample_table import Sample, SampleKey, SampleTable
from workbench.samples.bookmarks import Bookmarks
from workbench.samples.whole_run import RunPart

_REST = 30  # times the cost of a read: following the run takes at most 3% of a core
_AT_ONCE = 2000  # samples: so many are filtered and sorted within a few milliseconds


class ListedSamples(NamedTuple):
    """The samples to list, their number and means as text, and the message to show when there are none."""

    samples: Sequence[Sample]
    summary: str
    message: str


class BatchRead(NamedTuple):
    """The samples of one iteration as a thread read them."""

    folder: RunFolder
    iteration: int
    table: SampleTable | None
    problem: str  # why there is no table, else empty
    kept: list[int]  # iterations that have a samples file, ascending
    seconds: float  # of processor time


class Selection(NamedTuple):
    """The choice of some samples of a table, and their order."""

    table: SampleTable
    query: Query
    order: Order
    marked: Collection[SampleKey]

    def run(self) -> SampleTable:
        """Return the selected samples."""
        selected = self.table.select(self.query, self.order, self.marked)
        if len(self.table) > _AT_ONCE:  # in a thread: the keys that go to outliers must not wait for it
            selected.outliers()
        return selected


NO_SAMPLES_YET = ListedSamples([], "", "No samples yet. They appear after the first iteration.")


def read_iteration(folder: RunFolder, iteration: int) -> BatchRead:
    """Read the samples of one iteration; blocks for the time of the read."""
    began = time.thread_time()
    table, problem = None, ""
    try:
        table = read_batch(folder, iteration)
    except StorageError as error:
        problem = str(error)
    kept = kept_iterations(folder)
    return BatchRead(folder, iteration, table, problem, kept, time.thread_time() - began)


class SampleBrowser:
    """Controller of the list: which samples it shows, and which iteration has to be read next.

    It lists the newest iteration by default, or a chosen one, or the whole run. It reads no file itself: the pane reads
    in threads, and hands over the results with the `take_` methods.
    """

    def __init__(self, folder: RunFolder | None = None) -> None:
        self.folder = folder
        self.bookmarks: Bookmarks | None = None  # until they are read
        self.newest: SamplesWritten | None = None
        self.filter: Query = ()
        self.order = Order()
        self.whole_run = False
        self.table: SampleTable | None = None  # all samples before the filter; None for previews
        self.listed = NO_SAMPLES_YET  # another object whenever the list changes
        self.rest_until = 0.0  # on the monotonic clock: when a read that nobody waits for may start
        self._chosen: int | None = None  # the iteration to list; None to follow the newest
        self._held = False  # chosen only while a sample is open
        self._shown: int | None = None  # the listed iteration
        self._kept: list[int] = []
        self._progress = ""  # of reading the whole run

    def for_run(self, folder: RunFolder | None, kind: str) -> SampleBrowser:
        """Return the browser of another run, with the same filter and order."""
        other = SampleBrowser(folder)
        other.filter, other.order = self.filter, self.order
        if kind != PPO:
            other.listed = ListedSamples([], "", f"A {kind} run learns from pairs and writes no samples.")
        return other

    @property
    def iteration(self) -> int | None:
        """The iteration that is listed or about to be; None where there is none yet."""
        return self._shown if self._chosen is None and self._shown is not None else self._target

    @property
    def follows(self) -> bool:
        """Return whether the list follows the newest iteration."""
        return self._chosen is None and not self.whole_run

    @property
    def heading(self) -> str:
        """Heading of the list: iteration, number of samples, order."""
        newest, iteration, heading = self.newest, self.iteration, ""
        if self.whole_run:
            heading = f"whole run   {self.listed.summary}"
        elif newest is not None and iteration is not None:
            place = "newest" if iteration == newest.iteration else f"newest is {newest.iteration}"
            count = f"   {self.listed.summary}" if iteration == self._shown else ""
            heading = f"iteration {iteration} · {place}{count}"
        if self.order != Order():
            heading += f"   by {self.order.by} {'↓' if self.order.descending else '↑'}"
        return heading

    def announce(self, newest: SamplesWritten | None) -> bool:
        """Take the newest samples of the run; return whether they should be listed."""
        if newest is None or newest is self.newest:
            return False
        self.newest = newest
        if self._shown == newest.iteration:
            self._shown = None  # a resumed run repeated it
        return self._chosen is None

    def choose_iteration(self, iteration: int | None) -> None:
        """List `iteration`; with None follow the newest."""
        if self.whole_run:
            self.leave_whole_run()
        self._chosen, self._held = iteration, False

    def go(self, by: int) -> None:
        """List the previous (by < 0) or next iteration whose samples are saved."""
        newest, target = self.newest, self._target
        if newest is None or target is None or self.whole_run:
            return
        kept = sorted({newest.iteration, *(number for number in self._kept if number < newest.iteration)})
        place = bisect_left(kept, target) - 1 if by < 0 else bisect_right(kept, target)
        if 0 <= place < len(kept):
            self.choose_iteration(None if kept[place] == newest.iteration else kept[place])

    def hold(self) -> None:
        """Keep the listed iteration while a sample is open."""
        if self.follows and self._shown is not None:
            self._chosen, self._held = self._shown, True

    def release(self) -> bool:
        """Follow the newest iteration again if `hold` ended that; return whether it did."""
        held, self._held = self._held, False
        if held:
            self._chosen = None
        return held

    def enter_whole_run(self) -> None:
        """List the samples of all iterations, newest first, as `take_part` receives them."""
        self.whole_run, self.table, self._progress = True, None, "reading…"
        self.listed = ListedSamples([], "", "Reading the run…")

    def leave_whole_run(self) -> None:
        """List one iteration again."""
        self.whole_run, self._progress = False, ""
        self.table = self._shown = None

    def unread(self) -> int | None:
        """Return the iteration to read now; None if it is listed. Previews need no reading and are listed here."""
        newest, target = self.newest, self._target
        if self.folder is None or target is None or target == self._shown or self.whole_run:
            return None
        if newest is None or target != newest.iteration or newest.path:
            return target
        samples = preview_samples(newest)
        self._shown, self.table = target, None
        count = f"first {len(samples)} of {counted(newest.rows, 'sample')}; no files are saved"
        self.listed = ListedSamples(samples, count, "")
        return None

    def select(self) -> Selection | None:
        """List the samples that match the filter, in order; return the selection where it should run in a thread."""
        if self.table is None:
            return None
        selection = Selection(self.table, self.filter, self.order, frozenset(self.bookmarks or ()))
        if len(self.table) > _AT_ONCE:
            return selection
        self.take_selection(selection, selection.run())
        return None

    def take_batch(self, batch: BatchRead) -> bool:
        """List the samples of an iteration, unless something else is wanted by now; return whether it did."""
        if batch.folder != self.folder:
            return False
        self.rest_until = time.monotonic() + _REST * batch.seconds
        self._kept = batch.kept
        if self.whole_run or self._chosen not in (None, batch.iteration):
            return False
        self._shown, self.table = batch.iteration, batch.table
        if batch.table is None:
            self.listed = ListedSamples([], "", batch.problem)
        return True

    def take_part(self, part: RunPart) -> bool:
        """Add samples of the whole run after those read before, which are newer; return False if it is not listed."""
        if part.folder != self.folder or not self.whole_run:
            return False
        self._progress = "" if part.done == part.total else f"{part.done:,} of {part.total:,} iterations read"
        self.table = part.table if self.table is None else SampleTable.joined([self.table, part.table])
        return True

    def take_selection(self, selection: Selection, selected: SampleTable) -> None:
        """List the samples that a selection found, unless the table was replaced since."""
        table = selection.table
        if table is self.table:
            count = selected.summary(of=len(table) if len(selected) < len(table) else 0)
            no_match = "No matching samples. Press {sample-filter.clear} in the search to show all."
            message = no_match if len(table) else "No samples."
            self.listed = ListedSamples(selected, "   ".join(filter(None, [count, self._progress])), message)

    @property
    def _target(self) -> int | None:
        if self._chosen is not None:
            return self._chosen
        return self.newest.iteration if self.newest else None
