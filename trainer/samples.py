"""The sequences of an iteration as Parquet: one row a sequence, texts, scores and every per-token array."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.errors import StorageError

if TYPE_CHECKING:  # importing pyarrow takes 0.3 s, which a command that writes no samples need not wait
    import pyarrow as pa

SAMPLES_VERSION = 1
TOKEN_COLUMNS = (
    "sampler_logprobs",  # nats, by the sampler
    "logprobs",  # nats, teacher-forced, old policy
    "ref_logprobs",  # nats, teacher-forced, reference
    "kl",  # nats
    "entropy",  # nats
    "rewards",
    "values",
    "td_errors",
    "advantages",
    "returns",
)
"""Columns of one float32 for each response token, so each as long as `tokens`."""


@functools.cache
def sample_schema() -> pa.Schema:
    """Columns of a samples file. `parts` maps a reward source to its raw score, `columns` is JSON."""
    import pyarrow as pa

    tokens, numbers = pa.list_(pa.int32()), pa.list_(pa.float32())
    return pa.schema(
        [
            ("row", pa.int32()),  # within the batch, from 0
            ("prompt_index", pa.int32()),  # within the prompts
            ("sample", pa.int32()),  # which of the prompt's samples, from 0
            ("prompt", pa.string()),  # as rendered for the model
            ("completion", pa.string()),
            ("truncated", pa.bool_()),
            ("stop_reason", pa.string()),  # stop or length
            ("score", pa.float64()),
            ("parts", pa.map_(pa.string(), pa.float64())),
            ("columns", pa.string()),  # the prompt's other columns
            ("prompt_tokens", tokens),
            ("tokens", tokens),
            *((name, numbers) for name in TOKEN_COLUMNS),
        ]
    )


def write_samples(path: Path, rows: Sequence[dict[str, Any]], iteration: int) -> None:
    """Write `rows` (see `sample_schema`; what a row lacks is null) to `path`, whole or not at all.

    Per-token values may be lists or NumPy arrays. Text that is not Unicode (lone surrogates) is written with
    backslash escapes. Raises StorageError when `path` cannot be written, ValueError for columns that are not
    in the schema.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = sample_schema()
    if unknown := {name for row in rows for name in row} - set(schema.names):
        raise ValueError(f"unknown sample columns {sorted(unknown)}: the schema has {schema.names}")
    columns = [_column([row.get(field.name) for row in rows], field.type) for field in schema]
    metadata = {"samples": str(SAMPLES_VERSION), "iteration": str(iteration)}
    table = pa.Table.from_arrays(columns, schema=schema.with_metadata(metadata))
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise StorageError(
            f"cannot write samples '{path}': {error.strerror or error}; "
            "free space, or keep none with --set run.save_samples=false"
        ) from None


def read_samples(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """The table in `path`, or only some of its columns; `table.schema.metadata` has b"iteration".

    Raises StorageError when the file is missing, damaged, or lacks one of `columns`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            names = file.schema_arrow.names
            if missing := [name for name in columns or [] if name not in names]:
                raise StorageError(f"samples '{path}' have no column '{missing[0]}': they have {', '.join(names)}")
            return file.read(columns=None if columns is None else list(columns))
    except FileNotFoundError:
        raise StorageError(f"no samples '{path}': a run keeps them with run.save_samples = true") from None
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno:
            raise StorageError(f"cannot read samples '{path}': {error.strerror}; check the file's rights") from None
        reason = str(error).splitlines()[0]
        raise StorageError(f"samples '{path}' are damaged ({reason}): delete the file") from None


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if pa.types.is_string(kind):
        values = [_text(value) for value in values]
    elif pa.types.is_map(kind):
        values = [None if parts is None else [(_text(k), v) for k, v in parts.items()] for parts in values]
    return pa.array(values, type=kind)


def _text(value: str | None) -> str | None:
    return value if value is None else value.encode("utf-8", "backslashreplace").decode("utf-8")
