"""One prompt through training: its samples in each iteration that used it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trainer.errors import StorageError
from trainer.runs.folder import RunFolder
from trainer.runs.samples import read_samples
from workbench.run.sample_reader import kept_iterations, read_batch
from workbench.run.sample_records import Sample


def appearances(
    folder: RunFolder,
    prompt_index: int,
    prompt: str,
    stop: Callable[[], bool],
    tell: Callable[[str], object] = lambda problem: None,
) -> Iterator[Sample]:
    """Yield the samples of one prompt, newest iteration first, by row within an iteration.

    A sample must match both `prompt_index` and `prompt`: after a resume with other data the index may belong to
    another prompt. stop: called before each file. tell: called with the reason when a file cannot be read; the other
    files are still read.
    """
    for iteration in reversed(kept_iterations(folder)):
        if stop():
            return
        try:
            column = read_samples(folder.samples_file(iteration), ("prompt_index",))["prompt_index"]
            batch = read_batch(folder, iteration) if prompt_index in column.fill_null(-1).to_pylist() else ()
        except StorageError as error:
            tell(str(error))
            continue
        yield from (one for one in batch if one.prompt_index == prompt_index and one.prompt == prompt)
