"""Writers of rows to a file: JSON lines, CSV or Parquet; complete or not at all."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from trainer.errors import DataError, StorageError, UsageError
from trainer.preferences.formats.values import plain

_GROUP = 2000  # rows of a Parquet row group
Writer = Callable[[Path, Iterator[dict[str, Any]]], None]


def write_rows(path: Path, rows: Iterable[dict[str, Any]], *, overwrite: bool) -> None:
    """Write `rows`, at least one and all with the same keys, to the file `path`, by its suffix. Creates its folder.

    Raises UsageError for a suffix that is not in WRITERS, and if `path` exists and may not be overwritten, DataError
    for a value that the suffix cannot hold, and StorageError if the file cannot be written. On an error, nothing is
    left behind, and an existing file stays as it was.
    """
    writer = WRITERS.get(path.suffix.lower())
    if writer is None:
        raise UsageError(f"'{path}': suffix '{path.suffix}': must be one of {', '.join(WRITERS)}")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if path.is_dir():
            raise UsageError(f"'{path}' is a folder: give the file a name")
        _check_free(path, overwrite)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            writer(temporary, iter(rows))
            _check_free(path, overwrite)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"cannot write '{path}': {error.strerror or error}: choose another place") from None


def _check_free(path: Path, overwrite: bool) -> None:
    if path.exists() and not overwrite:
        raise UsageError(f"'{path}' exists: choose another name, or overwrite it with --force")


def _write_jsonl(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    # A lone surrogate becomes its escape, as JSON writes it.
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
        for row in rows:
            file.write(json.dumps(plain(row), ensure_ascii=False, allow_nan=False) + "\n")
        _sync(file)


def _write_csv(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        first = next(rows)
        writer = csv.DictWriter(file, list(first))
        writer.writeheader()
        for row in chain([first], rows):
            writer.writerow({name: _csv_cell(value) for name, value in row.items()})
        _sync(file)


def _csv_cell(value: Any) -> Any:
    if isinstance(value, list):
        raise DataError("CSV holds plain text, no messages: write .jsonl or .parquet")
    return json.dumps(plain(value), ensure_ascii=False) if isinstance(value, dict) else value


def _write_parquet(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    import pyarrow
    import pyarrow.parquet

    first = next(rows)
    schema = pyarrow.schema([(name, _arrow_type(name, value)) for name, value in first.items()])
    rows = chain([first], rows)
    try:
        with path.open("wb") as file:
            with pyarrow.parquet.ParquetWriter(file, schema) as writer:
                while group := list(islice(rows, _GROUP)):
                    writer.write_table(pyarrow.Table.from_pylist(group, schema))
            _sync(file)
    except (pyarrow.ArrowException, UnicodeEncodeError) as error:
        raise DataError(f"'{path}': Parquet cannot hold a row: {' '.join(str(error).split())}: write .jsonl") from None


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


def _sync(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())  # a rename must not reach the disk before the data it announces


WRITERS: dict[str, Writer] = {".jsonl": _write_jsonl, ".parquet": _write_parquet, ".csv": _write_csv}
