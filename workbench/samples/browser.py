"""Choice of the samples that are listed: one iteration or all of them, filtered, sorted and marked. Knows no screen."""

from __future__ import annotations

import fcntl
import json
import os
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from trainer.errors import StorageError
from trainer.events import SamplesWritten
from trainer.files import lock, read_regular, write_whole
from trainer.plurals import counted
from trainer.runs.folder import RunFolder
from trainer.runs.listing import PPO
from trainer.runs.samples import kept_iterations
from workbench.run.sample_query import Order, Query
from workbench.run.sample_reader import RunPart, preview_samples, read_batch
from workbench.run.sample_table import Sample, SampleKey, SampleTable

_VERSION = 1  # of bookmarks.json
_MOST = 2**31  # iterations and rows are 32-bit numbers


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


class Bookmarks(Collection[SampleKey]):
    """The marked samples of a run, sorted by iteration and row.

    bookmarks.json contains {"version": 1, "samples": [[iteration, row], ...]}. A file that cannot be used counts as
    empty, and `problem` says why; it is never overwritten.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._path = folder.root / "bookmarks.json"
        self._keys, self.problem = self._read()

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[SampleKey]:
        return iter(sorted(self._keys))

    def __len__(self) -> int:
        return len(self._keys)

    def toggle(self, key: SampleKey) -> bool:
        """Mark the sample `key`, or remove its mark; return whether it is marked now.

        Keeps what another process marked meanwhile. Raises StorageError when the file cannot be used or written;
        nothing changes then.
        """
        try:
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                lock(folder, fcntl.LOCK_EX)  # against other processes; no lock file is left behind
                keys, self.problem = self._read()
                if self.problem:
                    raise StorageError(self.problem)
                keys ^= {key}
                write_whole(self._path, f"{json.dumps({'version': _VERSION, 'samples': sorted(keys)})}\n")
            finally:
                os.close(folder)
        except OSError as error:
            raise StorageError(
                f"cannot write bookmarks '{self._path}': {error.strerror or error}; "
                "move the run to a local, writable folder"
            ) from None
        self._keys = keys
        return key in keys

    def _read(self) -> tuple[set[SampleKey], str]:
        """Return the marked samples in the file, and why it cannot be used, if it cannot."""
        problem = "are damaged: move the file away to mark samples"
        try:
            document = json.loads(read_regular(self._path))
            if document["version"] > _VERSION:
                problem = "were written by a newer version: update ppo-workbench"
            else:
                keys = {SampleKey(iteration, row) for iteration, row in document["samples"]}
                if all(type(number) is int and 0 <= number < _MOST for key in keys for number in key):
                    return keys, ""
        except FileNotFoundError:
            return set(), ""
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        return set(), f"bookmarks '{self._path}' {problem}"


NO_SAMPLES_YET = ListedSamples([], "", "No samples yet. They appear after the first iteration.")


def read_iteration(folder: RunFolder, iteration: int) -> BatchRead:
    """Read the samples of one iteration; blocks for the time of the read."""
    table, problem = None, ""
    try:
        table = read_batch(folder, iteration)
    except StorageError as error:
        problem = str(error)
    return BatchRead(folder, iteration, table, problem, kept_iterations(folder))


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

    def selected(self, table: SampleTable) -> SampleTable:
        """Return the samples of `table` that match the filter, in order; a thread may call it."""
        selected = table.select(self.filter, self.order, frozenset(self.bookmarks or ()))
        selected.outliers()  # which the keys that go to them should not wait for
        return selected

    def take_batch(self, batch: BatchRead) -> bool:
        """List the samples of an iteration, unless something else is wanted by now; return whether it did."""
        if batch.folder != self.folder:
            return False
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

    def take_selection(self, table: SampleTable, selected: SampleTable) -> None:
        """List what was selected from `table`, unless that was replaced since."""
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
