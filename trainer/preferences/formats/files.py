"""Rows of preferences written to files: JSON lines, CSV or Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from trainer.errors import DataError, StorageError, UsageError, one_line
from trainer.files import whole_file
from trainer.preferences.formats.columns import plain_json
from trainer.preferences.rows import Row

_GROUP = 2000  # rows of a Parquet row group


def write_rows(path: Path, rows: Iterable[Row], *, overwrite: bool) -> None:
    """Write `rows`, at least one and all with the same keys, to the file `path`, by its suffix. Creates its folder.

    Raises UsageError if `path` exists and may not be overwritten, DataError for a value that the suffix cannot hold,
    and StorageError if the file cannot be written. On an error, nothing is left behind, and an existing file stays as
    it was.
    """
    refusal = UsageError(f"'{path}' exists: choose another name, or overwrite it with --force")
    try:
        if path.is_dir():
            raise UsageError(f"'{path}' is a folder: give the file a name")
        if path.exists() and not overwrite:
            raise refusal
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path, sync=True) as file:
            if path.suffix.lower() == ".parquet":
                _write_parquet(file, iter(rows))
            else:  # a lone surrogate becomes its escape, as JSON writes it
                text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="")
                try:
                    if path.suffix.lower() == ".csv":
                        _write_csv(text, iter(rows))
                    else:
                        text.writelines(plain_json(row) + "\n" for row in rows)
                finally:
                    text.detach()  # else it would close the file
            if path.exists() and not overwrite:
                raise refusal
    except OSError as error:
        raise StorageError(f"cannot write '{path}': {error.strerror or error}: choose another place") from None


def _write_csv(text: IO[str], rows: Iterator[Row]) -> None:
    first = next(rows)
    writer = csv.DictWriter(text, list(first))
    writer.writeheader()
    for row in chain([first], rows):
        if any(isinstance(value, list) for value in row.values()):
            raise DataError("CSV cannot hold messages: write .jsonl or .parquet")
        writer.writerow({name: plain_json(one) if isinstance(one, dict) else one for name, one in row.items()})


def _write_parquet(file: IO[bytes], rows: Iterator[Row]) -> None:
    import pyarrow
    import pyarrow.parquet

    first = next(rows)
    schema = pyarrow.schema([(name, _arrow_type(name, value)) for name, value in first.items()])
    rows = chain([first], rows)
    try:
        with pyarrow.parquet.ParquetWriter(file, schema) as writer:
            while group := list(islice(rows, _GROUP)):
                writer.write_table(pyarrow.Table.from_pylist(group, schema))
    except (pyarrow.ArrowException, UnicodeEncodeError, OverflowError) as error:
        raise DataError(f"Parquet cannot hold a row: {one_line(error)}: write .jsonl") from None


def _arrow_type(name: str, value: Any) -> Any:
    """Return the type of a column by its name, or by its first value where that is text or messages."""
    import pyarrow as pa

    text = pa.string()
    if name == "judgement":
        numbers = {"strength": pa.int64(), "seconds": pa.float64(), "time": pa.float64()}
        lists = {"flags": pa.list_(text), "order_shown": pa.list_(pa.int64())}
        return pa.struct([(field, (numbers | lists).get(field, text)) for field in value])
    if name.endswith("origin"):
        names = ("source", "run", "iteration", "row", "checkpoint", "writer", "sampling")
        return pa.struct([(field, pa.int64() if field in ("iteration", "row") else text) for field in names])
    if isinstance(value, bool):
        return pa.bool_()
    return pa.list_(pa.struct([("role", text), ("content", text)])) if isinstance(value, list) else text
