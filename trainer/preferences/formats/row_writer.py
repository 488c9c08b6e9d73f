"""Rows of preferences written to files: JSON lines, CSV or Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from trainer.errors import DataError, StorageError, UsageError, one_line
from trainer.files import whole_file
from trainer.preferences.formats.values import plain_json

_GROUP = 2000  # rows of a Parquet row group


def write_rows(path: Path, rows: Iterable[dict[str, Any]], *, overwrite: bool) -> None:
    """Write `rows`, at least one and all with the same keys, to the file `path`, by its suffix. Creates its folder.

    Raises UsageError if `path` exists and may not be overwritten, DataError for a value that the suffix cannot hold,
    and StorageError if the file cannot be written. On an error, nothing is left behind, and an existing file stays as
    it was.
    """
    write = _WRITERS[path.suffix.lower()]
    try:
        if path.is_dir():
            raise UsageError(f"'{path}' is a folder: give the file a name")
        _check_free(path, overwrite)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path, sync=True) as file:
            write(file, iter(rows))
            _check_free(path, overwrite)
    except OSError as error:
        raise StorageError(f"cannot write '{path}': {error.strerror or error}: choose another place") from None


def _check_free(path: Path, overwrite: bool) -> None:
    if path.exists() and not overwrite:
        raise UsageError(f"'{path}' exists: choose another name, or overwrite it with --force")


@contextmanager
def _as_text(file: IO[bytes]) -> Iterator[IO[str]]:
    # A lone surrogate becomes its escape, as JSON writes it.
    text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="")
    try:
        yield text
    finally:
        text.detach()


def _write_jsonl(file: IO[bytes], rows: Iterator[dict[str, Any]]) -> None:
    with _as_text(file) as text:
        for row in rows:
            text.write(plain_json(row) + "\n")


def _write_csv(file: IO[bytes], rows: Iterator[dict[str, Any]]) -> None:
    first = next(rows)
    with _as_text(file) as text:
        writer = csv.DictWriter(text, list(first))
        writer.writeheader()
        for row in chain([first], rows):
            if any(isinstance(value, list) for value in row.values()):
                raise DataError("CSV cannot hold messages: write .jsonl or .parquet")
            writer.writerow({name: plain_json(one) if isinstance(one, dict) else one for name, one in row.items()})


def _write_parquet(file: IO[bytes], rows: Iterator[dict[str, Any]]) -> None:
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


_WRITERS: dict[str, Callable[[IO[bytes], Iterator[dict[str, Any]]], None]] = {
    ".jsonl": _write_jsonl,
    ".parquet": _write_parquet,
    ".csv": _write_csv,
}
