"""The samples of many iterations, read a few files at a time, so that the first can be shown meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from trainer.errors import StorageError
from trainer.runs.folder import RunFolder
from trainer.runs.sample_index import block_of, listed_schema, read_index
from trainer.runs.samples import file_sizes, kept_iterations, read_samples
from workbench.run.sample_reader import as_sample_table, browsed, read_batch
from workbench.run.sample_table import Sample, SampleTable

if TYPE_CHECKING:  # importing it takes a while, and the first frame of the screen does not need it
    import pyarrow as pa

_ITERATIONS = 50  # of a part at least, except the last: less than 0.2 s where each has its own file


class RunPart(NamedTuple):
    """Samples of some iterations of a run."""

    folder: RunFolder
    table: SampleTable
    done: int  # iterations read so far
    total: int
    problems: list[str]  # of files that could not be read


def scan(folder: RunFolder, iterations: Sequence[int], stop: Callable[[], bool] = lambda: False) -> Iterator[RunPart]:
    """Read the samples of `iterations`, newest first, in parts of several files.

    Each part but the last has at least a quarter of the iterations before it. So a caller that goes through all samples
    so far after every part processes the whole run about six times at most.
    stop: called before each file; when it returns True, samples read since the last part are dropped.
    """
    newest_first = sorted(iterations, reverse=True)
    sizes = file_sizes(folder) if newest_first else {}
    tables, problems, done, passed = list[SampleTable](), list[str](), 0, 0
    for _, block in groupby(newest_first, block_of):
        members = list(block)
        batches = _read(folder, members, sizes, problems, stop)
        if batches is None:
            return
        tables.append(batches)
        done += len(members)
        if done == len(newest_first) or done - passed >= max(_ITERATIONS, passed // 4):
            yield RunPart(folder, SampleTable.joined(tables).compact(), done, len(newest_first), problems)
            tables, problems, passed = [], [], done


def _read(
    folder: RunFolder,
    iterations: Sequence[int],
    sizes: Mapping[int, int],
    problems: list[str],
    stop: Callable[[], bool],
) -> SampleTable | None:
    """Read the samples of `iterations`, all of one index file; return None if `stop` says so.

    problems: receives a message for each file that cannot be read.
    """
    import pyarrow as pa

    if stop():
        return None
    indexed = read_index(folder.samples, {iteration: sizes.get(iteration, 0) for iteration in iterations})
    if indexed is not None:
        with suppress(pa.ArrowException):  # text that is not UTF-8 in one of the files
            return as_sample_table(indexed)
    read: dict[int, pa.Table] = {}
    for place, iteration in enumerate(iterations):
        if place and stop():
            return None
        try:
            read[iteration] = browsed(folder, iteration)
        except StorageError as error:
            problems.append(str(error))
    try:  # all at once: converting each small batch alone takes as long as reading it
        return as_sample_table(pa.concat_tables([listed_schema().empty_table(), *read.values()]))
    except pa.ArrowException:
        tables: list[SampleTable] = []
        for iteration in read:
            try:
                tables.append(read_batch(folder, iteration))
            except StorageError as error:
                problems.append(str(error))
        return SampleTable.joined(tables)


def samples_of_prompt(
    folder: RunFolder,
    prompt_index: int,
    prompt: str,
    stop: Callable[[], bool],
    report: Callable[[str], object] = lambda problem: None,
) -> Iterator[Sample]:
    """Yield the samples of one prompt, newest iteration first, by row within an iteration.

    A sample must match both `prompt_index` and `prompt`: after a resume with other data the index may belong to
    another prompt. stop: called before each file. report: called with the reason when a file cannot be read; the other
    files are still read.
    """
    for iteration in reversed(kept_iterations(folder)):
        if stop():
            return
        try:
            column = read_samples(folder.samples_file(iteration), ("prompt_index",))["prompt_index"]
            batch = read_batch(folder, iteration) if prompt_index in column.fill_null(-1).to_pylist() else ()
        except StorageError as error:
            report(str(error))
            continue
        yield from (one for one in batch if one.prompt_index == prompt_index and one.prompt == prompt)
