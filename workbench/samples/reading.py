"""The samples that the pane lists: one iteration or all of them, read in threads while the run continues."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from textual import work
from textual.message import Message
from textual.timer import Timer
from textual.worker import Worker, WorkerState, get_current_worker

from trainer.errors import StorageError
from trainer.events import SamplesWritten
from trainer.runs.folder import RunFolder
from workbench.kit.pane import Pane
from workbench.run.sample_query import Order, Query
from workbench.run.sample_reader import kept_iterations, preview_samples, read_batch
from workbench.run.sample_records import Sample, SampleKey
from workbench.run.sample_table import SampleTable
from workbench.run.view import RunView
from workbench.samples.bookmarks import Bookmarks
from workbench.samples.whole_run import scan

_REST = 30  # times the cost of a read: following the run takes at most 3% of a core
_AT_ONCE = 2000  # samples: so many are filtered and sorted within a few milliseconds


class _Reading(NamedTuple):
    """The samples of one iteration as a thread read them."""

    folder: RunFolder
    iteration: int
    table: SampleTable | None
    problem: str  # why there is no table, else empty
    kept: list[int]
    seconds: float  # of processor time


class _Selection(NamedTuple):
    """The samples that a thread selected from many."""

    table: SampleTable
    chosen: SampleTable


class SamplesReading(Pane):
    """Base of the samples pane: lists the newest iteration by default, or another one, or the whole run."""

    class ScoresRead(Message):
        """Message with the scores of a whole batch, read from the samples file of `iteration`."""

        def __init__(self, iteration: int, scores: list[float]) -> None:
            super().__init__()
            self.iteration = iteration
            self.scores = scores

    class PartRead(Message):
        """Message sent when some iterations of the whole run were read, or could not be."""

        def __init__(self, folder: RunFolder, table: SampleTable, done: int, total: int, problems: list[str]) -> None:
            super().__init__()
            self.folder, self.table, self.done, self.total, self.problems = folder, table, done, total, problems

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.folder: RunFolder | None = None
        self.bookmarks: Bookmarks | None = None
        self.newest: SamplesWritten | None = None
        self.filter = Query()
        self.order = Order()
        self.whole_run = False
        self.table: SampleTable | None = None  # all samples before the filter; None for previews
        self._wanted: int | None = None  # the requested iteration; None to follow the newest
        self._shown: int | None = None
        self._kept: list[int] = []
        self._progress = ""  # of reading the whole run
        self._reading: Worker[_Reading] | None = None
        self._scanning: Worker[None] | None = None
        self._rest_until = 0.0  # on the monotonic clock
        self._timer: Timer | None = None

    # For the subclass

    def list_samples(self, samples: Sequence[Sample], count: str, message: str) -> None:
        """Show `samples`. count: text with their number; message: text to show when there are none."""
        raise NotImplementedError

    def show_heading(self) -> None:
        """Update the heading; called when the listed iteration has changed or is about to."""
        raise NotImplementedError

    def forget(self) -> None:
        """Clear everything that belongs to the run shown before."""
        self.newest = self._wanted = self._shown = self.table = None
        self._rest_until = 0.0
        self._kept, self._progress = [], ""
        self._stop_scanning()

    def complain(self, problem: str) -> None:
        """Show the user what could not be read."""
        raise NotImplementedError

    # Requests

    @property
    def iteration(self) -> int | None:
        """The iteration that is listed or about to be; None where there is none yet."""
        return self._shown if self._wanted is None and self._shown is not None else self._target

    @property
    def follows(self) -> bool:
        """Whether the list follows the newest iteration."""
        return self._wanted is None and not self.whole_run

    def show_run(self, view: RunView) -> None:
        folder = RunFolder(Path(view.started.folder)) if view.started else None
        if folder != self.folder:
            self.forget()
            self.folder = folder
            self.bookmarks = Bookmarks(folder) if folder is not None else None
            if self.bookmarks is not None and self.bookmarks.problem:
                self.complain(self.bookmarks.problem)
        if view.samples is not None and view.samples is not self.newest:
            self.newest = view.samples
            if self._shown == view.samples.iteration:
                self._shown = None  # a resumed run repeated it
            if self._wanted is None:
                self._show_wanted(patiently=True)
        self.show_heading()

    def show_iteration(self, iteration: int | None) -> None:
        """List the samples of `iteration`; with None follow the newest again."""
        if self.whole_run:
            self._leave_whole_run()
        self._wanted = iteration
        self._show_wanted()

    def hold(self) -> bool:
        """Keep the iteration that is listed; return False if the list does not follow the newest anyway."""
        if self.whole_run or self._wanted is not None or self._shown is None:
            return False
        self._wanted = self._shown
        return True

    def let_go(self) -> None:
        """Follow the newest iteration again, after `hold`."""
        self._wanted = None
        self._show_wanted()

    def go(self, by: int) -> None:
        """List the previous (by < 0) or next iteration whose samples are saved."""
        newest, target = self.newest, self._target
        if newest is None or target is None or self.whole_run:
            return
        kept = sorted({newest.iteration, *(number for number in self._kept if number < newest.iteration)})
        place = bisect_left(kept, target) - 1 if by < 0 else bisect_right(kept, target)
        if 0 <= place < len(kept):
            self.show_iteration(None if kept[place] == newest.iteration else kept[place])

    def toggle_whole_run(self) -> None:
        """List the samples of all iterations so far, newest first, or those of one iteration again."""
        if self.whole_run:
            self._leave_whole_run()
            self._show_wanted()
        elif self.folder is not None:
            self.whole_run, self.table, self._progress = True, None, "reading"
            self.list_samples([], "", "reading the run")
            self._scanning = self._scan(self.folder)

    def choose(self, query: Query, order: Order) -> None:
        """List only the samples that match `query`, in `order`."""
        self.filter, self.order = query, order
        self.reselect()
        self.show_heading()

    def reselect(self) -> None:
        """Apply filter and order to the table again, in a thread if it is long."""
        table = self.table
        if table is None:
            return
        marked = frozenset(self.bookmarks or ())
        if len(table) <= _AT_ONCE:
            self._list(table, table.select(self.filter, self.order, marked))
        else:
            self._select(table, self.filter, self.order, marked)

    # Reading

    @property
    def _target(self) -> int | None:
        if self._wanted is not None:
            return self._wanted
        return self.newest.iteration if self.newest else None

    def _leave_whole_run(self) -> None:
        self._stop_scanning()
        self.table = self._shown = None

    def _stop_scanning(self) -> None:
        self.whole_run, self._progress = False, ""
        if self._scanning is not None:
            self._scanning.cancel()
            self._scanning = None

    def _show_wanted(self, *, patiently: bool = False) -> None:
        """List the wanted iteration: at once from previews, else once its file is read.

        patiently: nobody waits for it, so rest first in proportion to the cost of the last read.
        """
        newest, target = self.newest, self._target
        self.show_heading()
        if self.folder is None or target is None or target == self._shown or self.whole_run:
            return
        if newest is not None and target == newest.iteration and not newest.path:
            samples = preview_samples(newest)
            self._shown, self.table = target, None
            self.list_samples(samples, f"the first {len(samples)} of {newest.rows} samples; no files are kept", "")
        elif self._reading is None or self._reading.is_finished:
            rest = self._rest_until - time.monotonic()
            if not patiently or rest <= 0:
                self._reading = self._read(self.folder, target)
            elif self._timer is None:
                self._timer = self.set_timer(rest, self._stop_resting)

    def _stop_resting(self) -> None:
        self._timer = None
        self._show_wanted()

    @work(thread=True, exclusive=True, group="samples")
    def _read(self, folder: RunFolder, iteration: int) -> _Reading:
        began = time.thread_time()
        table, problem = None, ""
        try:
            table = read_batch(folder, iteration)
        except StorageError as error:
            problem = str(error)
        kept = kept_iterations(folder)
        return _Reading(folder, iteration, table, problem, kept, time.thread_time() - began)

    @work(thread=True, exclusive=True, group="scan")
    def _scan(self, folder: RunFolder) -> None:
        worker = get_current_worker()

        def found(*part: object) -> None:
            self.post_message(self.PartRead(folder, *part))  # type: ignore[arg-type]

        scan(folder, kept_iterations(folder), found, lambda: worker.is_cancelled)

    @work(thread=True, exclusive=True, group="select")
    def _select(self, table: SampleTable, query: Query, order: Order, marked: Collection[SampleKey]) -> _Selection:
        return _Selection(table, table.select(query, order, marked))

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """List what a thread read or selected, unless something else is wanted by now."""
        if event.state is not WorkerState.SUCCESS:
            return
        match event.worker.result:
            case _Reading() as reading:
                self._take(reading)
            case _Selection(table, chosen) if table is self.table:
                self._list(table, chosen)

    def _take(self, reading: _Reading) -> None:
        if reading.folder == self.folder:
            self._rest_until = time.monotonic() + _REST * reading.seconds
            self._kept = reading.kept
            if reading.table is not None and len(reading.table):
                self.post_message(self.ScoresRead(reading.iteration, reading.table.scores()))
            if self._wanted in (None, reading.iteration) and not self.whole_run:
                self._shown, self.table = reading.iteration, reading.table
                if reading.table is None:
                    self.list_samples([], "", reading.problem)
                self.reselect()
        self._show_wanted(patiently=self._wanted is None)

    def on_samples_reading_part_read(self, part: PartRead) -> None:
        """Add the samples of this part after those read before, which are newer."""
        if part.folder != self.folder or not self.whole_run:
            return
        self._progress = "" if part.done == part.total else f"{part.done:,} of {part.total:,} iterations read"
        self.table = part.table if self.table is None else SampleTable.joined([self.table, part.table])
        for problem in part.problems[:1]:
            more = f" (and {len(part.problems) - 1} more)" if len(part.problems) > 1 else ""
            self.complain(problem + more)
        self.reselect()

    def _list(self, table: SampleTable, chosen: SampleTable) -> None:
        count = chosen.summary(of=len(table) if len(chosen) < len(table) else 0)
        message = "no sample is like that: escape in the search shows all" if len(table) else "no samples"
        self.list_samples(chosen, "   ".join(filter(None, [count, self._progress])), message)
