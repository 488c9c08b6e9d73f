"""Rows of a data file (JSON lines, also gzipped, JSON, CSV, Parquet or plain text, by its suffix) or of a dataset."""

from __future__ import annotations

import codecs
import csv
import difflib
import gzip
import io
import itertools
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from trainer.errors import DataError, one_line
from trainer.files import open_regular

ROW_BYTES = 16 << 20
"""Largest row, line of text or cell of a CSV file that is read: a prompt of millions of tokens."""

UNPACKED_BYTES = 1 << 30
"""Memory that the rows of a compressed file may always take."""

UNPACKED_RATIO = 50
"""Factor by which they may always exceed the file: text shrinks to a tenth, hardly to less."""

_ROW_OVERHEAD = 300  # bytes of a row in memory beside its text
_TOO_LARGE = f"has rows of more than {ROW_BYTES >> 20} MiB: shorten them"
_JSON_BYTES = 256 << 20  # of a file that is parsed whole
_SEPARATORS = (",", ";", "\t")  # the first of those that are equally frequent
_QUOTED = re.compile('"[^"]*"')
_EXCEL_SEPARATOR = re.compile(r"sep=(.)\s*")
_JSON_NAMES = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
Part = TypeVar("Part")
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


class SourceRow(NamedTuple):
    """A row as it is in its source; errors call it by its `place`: `data.jsonl:3`, `data.parquet[2]`."""

    place: str
    columns: dict[str, Any]


OnBroken = Callable[[DataError], None]
Reader = Callable[[Path, str, OnBroken], Iterator[SourceRow]]


def refuse(error: DataError) -> None:
    """Raise the error of a broken row, which ends the reading; the default for `broken`."""
    raise error


def read_rows(path: Path, column: str = "", broken: OnBroken = refuse) -> Iterator[SourceRow]:
    """Yield the rows of the file `path`; `column` names the only column of plain text.

    A row that can be skipped by itself (a line that is not JSON, a line with too many fields) goes to `broken` as the
    DataError that names its place; if `broken` returns, reading goes on.

    Raises DataError for an unknown suffix, an unreadable file, text that is not UTF-8 and content that does not match
    the suffix.
    """
    reader = READERS.get(suffix(path))
    if reader is None:
        known = ", ".join(READERS)
        raise DataError(f"{path}: unknown suffix '{path.suffix}': must be one of {known}")
    try:
        yield from reader(path, column, broken)
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror or error}") from None


def source_rows(
    source: str, split: str, broken: OnBroken = refuse, *, column: str = "", prompt_sets: Sequence[str] = ()
) -> Iterator[SourceRow]:
    """Read the rows of `source`: a file, a folder written by `Dataset.save_to_disk`, or a name for `load_dataset`.

    split: of a dataset. broken, column: as for `read_rows`. prompt_sets: names of the shipped sets, where the source is
    the configuration's data.prompts; errors then name its keys. Raises DataError for what cannot be read.
    """
    if not is_dataset(source, prompt_sets):
        return read_rows(Path(source).expanduser(), column, broken)
    named, path = _named(source, prompt_sets), Path(source).expanduser()
    is_folder = path.is_dir()
    try:
        import datasets  # 5 s

        bars = datasets.are_progress_bars_disabled()
        datasets.disable_progress_bars()  # they would draw over a terminal interface
        try:
            data = datasets.load_from_disk(str(path)) if is_folder else datasets.load_dataset(source, split=split)
        finally:
            if not bars:
                datasets.enable_progress_bars()
    except Exception as error:
        reason = one_line(error)
        if is_folder:
            message = f"{named}: a folder must be one that Dataset.save_to_disk wrote: {reason}"
        else:
            not_a = f"neither a file nor a shipped set ({', '.join(prompt_sets)})" if prompt_sets else "not a file"
            message = (
                f"{named}: {not_a}, and datasets cannot load it: {reason}; connect to the hub, or give a file "
                f"({', '.join(READERS)})"
            )
        raise DataError(message) from error
    if isinstance(data, dict):  # of splits
        if split not in data:
            key = "data.split =" if prompt_sets else "split"
            raise DataError(f"{key} '{split}': '{source}' has the splits {', '.join(data)}")
        data = data[split]
    return (SourceRow(f"{source}[{index}]", row) for index, row in enumerate(data))


def is_dataset(source: str, prompt_sets: Sequence[str] = ()) -> bool:
    """Return whether the library `datasets` has to load `source`, which may take a network; False for a file.

    prompt_sets: as for `source_rows`. Raises DataError if nothing can load it.
    """
    named = _named(source, prompt_sets)
    try:
        path = Path(source).expanduser()
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, RuntimeError) as error:
        raise DataError(f"{named} cannot be read: {error}") from None
    if not exists:
        if suffix(path) in READERS or not _HUB_NAME.fullmatch(source):
            raise DataError(f"{named}: no such file: paths are relative to {Path.cwd()}")
        # Before asking the hub: a mistyped name should not cost an import and a time-out.
        if close := difflib.get_close_matches(source, prompt_sets, n=1, cutoff=0.8):
            raise DataError(f"{named}: no such file or shipped set: did you mean '{close[0]}'?")
    return is_folder or not exists


def _named(source: str, prompt_sets: Sequence[str]) -> str:
    return f"data.prompts = '{source}'" if prompt_sets else f"'{source}'"


def suffix(path: Path) -> str:
    """Return the suffix of `path` in lower case, including that of a compressed file: `.jsonl.gz`."""
    return "".join(path.suffixes[-2 if path.suffix.lower() == ".gz" else -1 :]).lower()


def _text_lines(path: Path, newline: str | None = None, longest: int = ROW_BYTES) -> Iterator[str]:
    """Yield the lines of `path` one by one, so that a large file is never whole in memory.

    newline: as for `open`. longest: characters of a line. Raises DataError for a longer one, and for text that is not
    UTF-8.
    """
    with open_regular(path) as file:
        content = gzip.GzipFile(fileobj=file) if path.suffix.lower() == ".gz" else file
        try:
            start = content.peek(2)[:2]
            if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) or b"\0" in start:
                raise DataError(f"{path}: is UTF-16: save the file as UTF-8")
            # Not splitlines(): it also breaks at U+2028 and U+0085, which may occur inside a JSON string.
            with io.TextIOWrapper(content, encoding="utf-8-sig", errors="surrogateescape", newline=newline) as text:
                for number in itertools.count(1):
                    line = text.readline(longest + 1)
                    if not line:
                        return
                    if len(line) > longest:
                        raise DataError(f"{path}:{number}: is longer than {longest >> 20} MiB: shorten it")
                    line.encode()
                    yield line
        except UnicodeEncodeError as error:
            byte = error.object[error.start].encode(errors="surrogateescape")
            guess = byte.decode("cp1252", errors="ignore")
            guess = f" (in Windows-1252 it is '{guess}')" if guess.isprintable() and guess else ""
            problem = f"byte 0x{byte.hex()} is not UTF-8{guess}: save the file as UTF-8"
            raise DataError(f"{path}:{number}: {problem}") from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(f"{path}: incomplete or damaged gzip file: {error}") from None


def _bounded(path: Path, parts: Iterable[Part], size_of: Callable[[Part], int], way_out: str) -> Iterator[Part]:
    """Yield `parts` of a compressed file until they take too much memory: a small file cannot fill all of it."""
    left = max(UNPACKED_BYTES, UNPACKED_RATIO * path.stat().st_size)
    for part in parts:
        left -= size_of(part)
        if left < 0:
            most = f"{UNPACKED_BYTES >> 30} GiB and {UNPACKED_RATIO} times its size"
            raise DataError(f"{path}: unpacks to more than {most}: {way_out}")
        yield part


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    lines: Iterator[str] = _text_lines(path)
    if path.suffix.lower() == ".gz":
        lines = _bounded(path, lines, lambda line: len(line) + _ROW_OVERHEAD, "unpack it with gunzip")
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield f"{path}:{number}", line.rstrip("\n")


def _parsed(text: str, place: str, *, is_file: bool = False) -> Any:
    """Parse JSON; `place` is that of a line, or the path of a file. Raises DataError."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where, hint = place, ""
        if is_file:
            where, hint = f"{place}:{error.lineno}", "; name a file with one object per line .jsonl"
        raise DataError(f"{where}: not JSON: {error.msg.removesuffix(' at')} at column {error.colno}{hint}") from None
    except ValueError:  # of int()
        raise DataError(f"{place}: has a number of thousands of digits: shorten it") from None
    except RecursionError:
        raise DataError(f"{place}: JSON nested too deeply") from None


def _read_jsonl(path: Path, column: str, broken: OnBroken) -> Iterator[SourceRow]:
    for place, line in _lines(path):
        try:
            row = _parsed(line, place)
        except DataError as error:
            broken(error)
            continue
        yield from _objects([(place, row)], broken)


def _read_json(path: Path, column: str, broken: OnBroken) -> Iterator[SourceRow]:
    if path.stat().st_size > _JSON_BYTES:
        raise DataError(
            f"{path}: is larger than {_JSON_BYTES >> 20} MiB: write one object per line, to a file named .jsonl"
        )
    rows = _parsed("".join(_text_lines(path, longest=_JSON_BYTES)), str(path), is_file=True)
    if not isinstance(rows, list):
        raise DataError(f"{path}: must be a list of objects, is {_JSON_NAMES.get(type(rows), 'a number')}")
    yield from _objects(((f"{path}[{index}]", row) for index, row in enumerate(rows)), broken)


def _objects(rows: Iterable[tuple[str, Any]], broken: OnBroken) -> Iterator[SourceRow]:
    for place, row in rows:
        if isinstance(row, dict):
            yield SourceRow(place, row)
        else:
            kind = _JSON_NAMES.get(type(row), "a number")
            broken(DataError(f'{place}: must be an object such as {{"prompt": "..."}}, is {kind}'))


def _read_csv(path: Path, column: str, broken: OnBroken) -> Iterator[SourceRow]:
    """Yield the rows below the header, those without any text left out; a row's place is the line where it begins.

    Of comma, semicolon and tab, the one that the header has most of separates fields, unless Excel's `sep=` names it.
    """
    csv.field_size_limit(ROW_BYTES)
    lines = _text_lines(path, newline="")
    start = []  # up to the first line that is not blank
    for line in lines:
        start.append(line)
        if line.strip():
            break
    first = start[-1] if start else ""
    if named := _EXCEL_SEPARATOR.fullmatch(first):
        separator, start[-1] = named[1], "\n"
    else:
        separator = max(_SEPARATORS, key=_QUOTED.sub("", first).count)
    reader = csv.reader(itertools.chain(start, lines), delimiter=separator, strict=True)
    header: list[str] = []
    begin = 1
    try:
        for cells in reader:
            place, begin = f"{path}:{begin}", reader.line_num + 1
            while len(cells) > len(header) and not cells[-1].strip():
                cells.pop()  # spreadsheets fill all rows up to the longest
            if not any(map(str.strip, cells)):
                continue
            if not header:
                header = [cell.strip() for cell in cells]
                _check_names(header, place)
            elif len(cells) > len(header):
                broken(DataError(f"{place}: has more fields than the header: quote fields that contain {separator!r}"))
            else:
                yield SourceRow(place, dict(itertools.zip_longest(header, cells)))
    except csv.Error as error:
        line = f" in line {reader.line_num}" if reader.line_num > begin else ""
        raise DataError(f"{path}:{begin}: not CSV: {error}{line}") from None


def _check_names(names: Sequence[str], place: str) -> None:
    """Raise DataError if two columns have the same name, unless they have none."""
    if twice := next((name for name, count in Counter(names).items() if name and count > 1), None):
        raise DataError(f"{place}: the header has the column '{twice}' twice: rename or remove one")


def _read_parquet(path: Path, column: str, broken: OnBroken) -> Iterator[SourceRow]:
    import pyarrow
    import pyarrow.parquet

    places = itertools.count()
    try:
        with open_regular(path) as content, pyarrow.parquet.ParquetFile(content) as file:
            _check_names(file.schema_arrow.names, str(path))
            batches = (
                pyarrow.record_batch(
                    [one.dictionary_decode() if isinstance(one, pyarrow.DictionaryArray) else one for one in columns],
                    columns.schema.names,
                )
                for columns in file.iter_batches(batch_size=_batch_rows(file.metadata, path))
            )
            for batch in _bounded(
                path, batches, lambda one: one.nbytes + _ROW_OVERHEAD * one.num_rows, "split it, or write it as .jsonl"
            ):
                for index in range(batch.num_rows):
                    try:
                        row = _parquet_row(batch, index, f"{path}[{next(places)}]")
                    except DataError as error:
                        broken(error)
                    else:
                        yield row
    except (pyarrow.ArrowException, UnicodeDecodeError, OverflowError) as error:  # of names of columns, of dates
        raise DataError(f"{path}: not a Parquet file: {one_line(error)}") from None


def _batch_rows(metadata: Any, path: Path) -> int:
    """Return how many rows to unpack at once: 1 where few bytes become so many that more might fill the memory."""
    rows = 64  # as quick as more
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            size = max(chunk.total_uncompressed_size, chunk.num_values)
            if size > ROW_BYTES and size > UNPACKED_RATIO * chunk.total_compressed_size:
                if size > ROW_BYTES * group.num_rows:
                    raise DataError(f"{path}: column '{chunk.path_in_schema}' {_TOO_LARGE}")
                rows = 1
    return rows


def _parquet_row(batch: Any, index: int, place: str) -> SourceRow:
    """Return a row of a batch of a Parquet file. Raises DataError for one that is too large, or is not in UTF-8."""
    row, columns = batch.slice(index, 1), dict[str, Any]()
    if row.nbytes > ROW_BYTES:
        raise DataError(f"{place}: {_TOO_LARGE}")
    for name, column in zip(batch.schema.names, row.columns, strict=True):
        try:
            columns[name] = column[0].as_py()
        except (ValueError, OverflowError) as error:
            raise DataError(f"{place}: column '{name}' cannot be read ({error}): save its text as UTF-8") from None
    return SourceRow(place, columns)


READERS: dict[str, Reader] = {
    ".jsonl": _read_jsonl,
    ".jsonl.gz": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": _read_parquet,
    ".txt": lambda path, column, broken: (SourceRow(place, {column: line}) for place, line in _lines(path)),
}
