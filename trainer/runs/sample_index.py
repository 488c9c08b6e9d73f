"""Index of a run's samples: the columns that lists and searches read, 64 iterations per file.

`samples/index/step-000128.parquet` has the columns LISTED of iterations 65 to 128. Opening a file takes as long as
reading hundreds of samples, so a search through thousands of files would take seconds. The files of the iterations are
authoritative: a reader opens them if the index is missing, damaged, or not of these files.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.errors import StorageError
from trainer.files import is_folder, open_regular, own_folder, whole_file
from trainer.runs.samples import SAMPLES_VERSION, read_samples, sample_schema

if TYPE_CHECKING:  # see `trainer.runs.samples`
    import pyarrow as pa

ITERATIONS = 64
"""Number of iterations per index file."""

LISTED = ("row", "prompt_index", "prompt", "completion", "truncated", "score", "length", "kl_sum")
"""Columns of a samples file that are in the index."""


def block_of(iteration: int) -> int:
    """Return the last iteration of the index file that `iteration` belongs to."""
    return -(-iteration // ITERATIONS) * ITERATIONS


def listed_schema() -> pa.Schema:
    """Return the columns of an index file: the iteration, and LISTED as in `sample_schema`."""
    import pyarrow as pa

    return pa.schema([("iteration", pa.int32()), *(sample_schema().field(name) for name in LISTED)])


def update_index(samples: Path, iteration: int) -> None:
    """Update the index in the folder `samples`, now that the file of `iteration` has been written.

    The last iteration of an index file writes it. Any other one removes what an earlier attempt at these iterations
    left. An index that cannot be written costs only time, so nothing is raised.
    """
    import pyarrow as pa

    path = _index_file(samples, iteration)
    try:
        if iteration == block_of(iteration):
            _write(path, samples, iteration)
        elif is_folder(path.parent):  # not a link, behind which are files of somebody else
            path.unlink(missing_ok=True)
    except (OSError, StorageError, pa.ArrowException):
        return


def read_index(samples: Path, sizes: Mapping[int, int]) -> pa.Table | None:
    """Read the index of the iterations in `sizes`, all of one `block_of`, newest iteration first.

    sizes: bytes of their samples files. None if the index is not of exactly these files, or cannot be read. Text is not
    checked to be UTF-8.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        path = _index_file(samples, max(sizes))
        with open_regular(path) as content, pq.ParquetFile(content, page_checksum_verification=True) as file:
            if (file.schema_arrow.metadata or {}).get(b"samples") != _stamp(sizes):
                return None
            return file.read(use_threads=False).cast(listed_schema())
    except (OSError, pa.ArrowException):
        return None


def _index_file(samples: Path, iteration: int) -> Path:
    return samples / "index" / f"step-{block_of(iteration):06d}.parquet"


def _stamp(sizes: Mapping[int, int]) -> bytes:
    """Return what identifies the content of an index file: the version of the columns, and each file with its size."""
    return json.dumps([SAMPLES_VERSION, sorted(sizes.items())]).encode()


def _write(path: Path, samples: Path, iteration: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables, sizes, mode = list[pa.Table](), dict[int, int](), 0
    for number in range(iteration, iteration - ITERATIONS, -1):
        file = samples / f"step-{number:06d}.parquet"
        try:
            found = file.stat()
        except FileNotFoundError:
            continue
        mode = mode or stat.S_IMODE(found.st_mode)  # whoever may read the samples may read their index
        sizes[number] = found.st_size
        table = read_samples(file, LISTED)
        tables.append(table.add_column(0, "iteration", pa.array([number] * len(table), pa.int32())))
    schema = listed_schema().with_metadata({"samples": _stamp(sizes)})
    own_folder(path.parent)
    with whole_file(path, mode=mode) as target:
        table = pa.concat_tables(tables).cast(schema)
        pq.write_table(table, target, compression="zstd", write_page_checksum=True)
