"""Rows of preferences in files: read from any kind that holds rows, written to JSON lines, CSV or Parquet."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from trainer.data.readers import READERS, OnBroken, SourceRow, read_rows, suffix
from trainer.errors import DataError, StorageError, UsageError
from trainer.files import whole_file
from trainer.preferences.formats.values import plain

_GROUP = 2000  # rows of a Parquet row group
_as_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def source_rows(source: str, split: str, broken: OnBroken) -> Iterator[SourceRow]:
    """Read the rows of `source`: a file, a folder written by `Dataset.save_to_disk`, or a name for `load_dataset`.

    A broken row of a file that can be left out by itself goes to `broken`. Raises DataError for what cannot be read.
    """
    try:
        path = Path(source).expanduser()
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, RuntimeError) as error:
        raise DataError(f"'{source}' cannot be read: {error}") from None
    if is_folder:
        return _dataset_rows(source, split, path)
    if exists:
        return read_rows(path, broken=broken)
    if suffix(path) in READERS or not _HUB_NAME.fullmatch(source):
        raise DataError(f"'{source}': no such file: paths are relative to {Path.cwd()}")
    return _dataset_rows(source, split, None)


def _dataset_rows(source: str, split: str, folder: Path | None) -> Iterator[SourceRow]:
    import datasets  # 5 s

    # Progress bars would draw over a terminal interface.
    bars = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        data = datasets.load_from_disk(str(folder)) if folder else datasets.load_dataset(source, split=split)
    except Exception as error:
        raise DataError(_not_loaded(source, folder, error)) from error
    finally:
        if not bars:
            datasets.enable_progress_bars()
    if isinstance(data, datasets.DatasetDict):
        if split not in data:
            raise DataError(f"split '{split}': '{source}' has the splits {', '.join(data)}")
        data = data[split]
    return (SourceRow(f"{source}[{index}]", row) for index, row in enumerate(data))


def _not_loaded(source: str, folder: Path | None, error: Exception) -> str:
    reason = " ".join(str(error).split()) or type(error).__name__
    if folder is not None:
        return f"'{source}': a folder must be one that Dataset.save_to_disk wrote: {reason}"
    return (
        f"'{source}': not a file, and datasets cannot load it: {reason}; connect to the hub, or give a file "
        f"({', '.join(READERS)})"
    )


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
            text.write(_as_json(plain(row)) + "\n")


def _write_csv(file: IO[bytes], rows: Iterator[dict[str, Any]]) -> None:
    first = next(rows)
    with _as_text(file) as text:
        writer = csv.DictWriter(text, list(first))
        writer.writeheader()
        for row in chain([first], rows):
            writer.writerow({name: _csv_cell(value) for name, value in row.items()})


def _csv_cell(value: Any) -> Any:
    if isinstance(value, list):
        raise DataError("CSV cannot hold messages: write .jsonl or .parquet")
    return _as_json(plain(value)) if isinstance(value, dict) else value


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
    except (pyarrow.ArrowException, UnicodeEncodeError) as error:
        raise DataError(f"Parquet cannot hold a row: {' '.join(str(error).split())}: write .jsonl") from None


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
