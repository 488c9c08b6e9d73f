"""The samples of many iterations, read a few files at a time so that what was found can be shown meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainer.errors import StorageError
from trainer.runs import RunFolder
from workbench.samples.reader import read_batch
from workbench.samples.table import SampleTable

_FILES = 50  # at a time: some 0.1 s


def scan(
    folder: RunFolder,
    iterations: Sequence[int],
    found: Callable[[SampleTable, int, int, list[str]], object],
    stop: Callable[[], bool],
) -> None:
    """Read the samples of `iterations`, newest first, and hand on those of some files at a time.

    found: is called with the samples of these files, how many iterations are done, of how many, and why files of
    these could not be read. stop: asked before each file; when it says so, what was read since the last call of
    `found` is dropped.
    """
    newest_first = sorted(iterations, reverse=True)
    for begin in range(0, len(newest_first), _FILES):
        tables, problems = [], []
        for iteration in newest_first[begin : begin + _FILES]:
            if stop():
                return
            try:
                tables.append(read_batch(folder, iteration))
            except StorageError as error:
                problems.append(str(error))
        done = min(begin + _FILES, len(newest_first))
        found(SampleTable.joined(tables).compact(), done, len(newest_first), problems)
