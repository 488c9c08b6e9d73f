"""One prompt through training: what was written to it in each iteration that met it."""

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
    """The samples of one prompt, newest iteration first, in each by row.

    prompt_index finds them, and `prompt` makes sure: after a resume with other data the index may be another prompt's.
    stop: asked before each file. tell: is called with why a file could not be read; the others are read on.
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
