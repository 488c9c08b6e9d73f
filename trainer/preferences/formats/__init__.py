"""Formats of preferences, and reading and writing of files in them.

To add a format: write a function that reads a row, or one that makes rows, in `published`, and a line in FORMATS.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NamedTuple

from trainer.data.readers import SourceRow, source_rows
from trainer.errors import DataError, UsageError, counted, one_line, storage_error
from trainer.files import whole_file
from trainer.preferences.formats.columns import SAME_COMPLETIONS, ColumnNames, Ties, WriteOptions, plain_json
from trainer.preferences.formats.published import (
    arena_sides,
    column_rows,
    is_unjudged,
    k_way_rows,
    kto_rows,
    read_arena,
    read_columns,
    read_hh,
    read_k_way,
    read_trl,
    read_trl_implicit,
    read_ultrafeedback,
    read_unjudged,
    trl_implicit_rows,
    trl_rows,
)
from trainer.preferences.records import ASSISTANT, HUMAN, Preference, as_messages, contents, ranked_pairs
from trainer.preferences.rows import Row

__all__ = [
    "FORMATS_IN",
    "FORMATS_OUT",
    "ColumnNames",
    "ExportSummary",
    "Reading",
    "read_preferences",
    "write_preferences",
    "write_rows",
]

_ENCODER = json.JSONEncoder(ensure_ascii=False, default=str)
_GROUP = 2000  # rows of a Parquet row group
_REPORTED = 20  # broken rows reported one by one


class Format(NamedTuple):
    """A format: how a row is read, how the rows of a preference are made, and the suffixes that can hold them.

    conversational: all texts become messages when written. verbatim: texts are written as they are, and equal or empty
    completions are read.
    """

    read: Callable[[SourceRow, ColumnNames, str], Preference] | None = None
    rows: Callable[[Preference, WriteOptions], Iterator[Row]] | None = None
    suffixes: tuple[str, ...] = (".jsonl", ".parquet")
    conversational: bool = False
    verbatim: bool = False


FORMATS = {
    "trl": Format(read_trl, trl_rows),
    "trl-implicit": Format(read_trl_implicit, trl_implicit_rows),
    "trl-conversational": Format(rows=trl_rows, conversational=True),
    "hh": Format(read_hh),
    "ultrafeedback": Format(read_ultrafeedback),
    "arena": Format(read_arena),
    "kto": Format(rows=kto_rows),
    "kto-conversational": Format(rows=kto_rows, conversational=True),
    "columns": Format(read_columns, column_rows, (".jsonl", ".parquet", ".csv")),
    "k-way": Format(read_k_way, k_way_rows, (".jsonl",), verbatim=True),
}
FORMATS_IN = {name: format for name, format in FORMATS.items() if format.read}
FORMATS_OUT = {name: format for name, format in FORMATS.items() if format.rows}
_UNJUDGED = Format(read_unjudged)


@dataclass(slots=True)
class Reading:
    """Preferences, read lazily and once. The counts cover the rows read so far.

    Iterating raises DataError at a broken row, unless broken rows are skipped.
    """

    source: str
    format: str  # one of FORMATS_IN, unjudged, or store
    skip_broken: bool = False
    rows: int = 0  # broken ones included
    broken: int = 0
    problems: list[str] = field(default_factory=list)  # the first broken rows: place and rule
    preferences: Iterator[Preference] = field(default_factory=lambda: iter(()), repr=False)

    def __iter__(self) -> Iterator[Preference]:
        return self.preferences

    @property
    def warnings(self) -> list[str]:
        """Warnings about the rows read so far, one line each."""
        if not self.broken:
            return []
        return [f"{self.broken} of {counted(self.rows, 'row')} in '{self.source}' skipped as broken", *self.problems]

    def count_broken(self, error: DataError) -> None:
        """Count a broken row. Raises `error` unless broken rows are skipped."""
        self.rows += 1
        if not self.skip_broken:
            raise DataError(f"{error} (--skip-broken, or data.skip_broken = true, leaves such rows out)")
        self.broken += 1
        if len(self.problems) < _REPORTED:
            self.problems.append(str(error))


def read_preferences(
    source: str,
    *,
    format: str = "auto",
    split: str = "train",
    columns: ColumnNames | None = None,
    skip_broken: bool = False,
    conversational: bool = False,
    unjudged: bool = False,
) -> Reading:
    """Read `source`: a file (.jsonl, .jsonl.gz, .json, .csv, .parquet), a folder or a `datasets` name.

    format: one of FORMATS_IN, or auto: by the columns of the first row. split: of a dataset. columns: the source's
    names for its columns. skip_broken: skip and count rows that break a rule. conversational: turn plain text and
    transcripts into chat messages. unjudged: with format auto, read rows that are yet to be judged too, as skips.

    Raises UsageError for an unknown format, and DataError for a source that cannot be read, has no rows, or whose
    format cannot be recognised.
    """
    if format != "auto" and format not in FORMATS_IN:
        raise UsageError(f"format '{format}': must be one of auto, {', '.join(FORMATS_IN)}")
    names = columns or ColumnNames()
    reading = Reading(source, format, skip_broken)
    rows = source_rows(source, split, reading.count_broken)
    first = next(rows, None)
    if first is None:
        raise DataError(f"'{source}' has no rows" + "".join(f"; {problem}" for problem in reading.problems[:1]))
    if format == "auto":
        reading.format = "unjudged" if unjudged and is_unjudged(first, names) else _detect(first, names)
    reading.preferences = _preferences(reading, chain([first], rows), names, conversational=conversational)
    return reading


def _preferences(
    reading: Reading, rows: Iterator[SourceRow], names: ColumnNames, *, conversational: bool
) -> Iterator[Preference]:
    format = _UNJUDGED if reading.format == "unjudged" else FORMATS_IN[reading.format]
    assert format.read is not None
    for row in rows:
        try:
            _ENCODER.encode(row.columns).encode()
            preference = format.read(row, names, reading.source)
            preference = _conversation(preference) if conversational else preference
            completions = preference.comparison.completions
            if not format.verbatim:
                ranked = ranked_pairs(preference.judgement)
                if any(completions[better] == completions[worse] for better, worse in ranked):
                    raise DataError(f"{row.place}: {SAME_COMPLETIONS}")
                if any(not "".join(contents(completion)).strip() for completion in completions):
                    raise DataError(f"{row.place}: a completion is empty: remove the row")
        except RecursionError:
            reading.count_broken(DataError(f"{row.place}: nested too deeply"))
        except UnicodeEncodeError as error:  # no file and no database can hold it
            unit = f"\\u{ord(error.object[error.start]):04x}"
            problem = f"has half a surrogate pair ({unit}), which is not text: remove it"
            reading.count_broken(DataError(f"{row.place}: {problem}"))
        except DataError as error:
            reading.count_broken(error)
        else:
            reading.rows += 1
            yield replace(preference, place=row.place)


def _detect(row: SourceRow, names: ColumnNames) -> str:
    """Return the format of a source whose first row is `row`. Raises DataError if its columns fit none."""
    has = row.columns.keys()
    if "completions" in has:
        return "k-way" if {"ranking", "verdict"} & has else "ultrafeedback"
    if {names.chosen, names.rejected} <= has:
        if names.prompt in has:
            return "trl"
        texts = (row.columns[names.chosen], row.columns[names.rejected])
        transcripts = all(isinstance(text, str) and text.startswith(HUMAN) and ASSISTANT in text for text in texts)
        return "hh" if transcripts else "trl-implicit"
    if {names.prompt, names.a, names.b, names.choice} <= has:
        return "columns"
    if arena_sides(has) and {"winner", "winner_model_a"} & has:
        return "arena"
    listed = ", ".join(map(str, has)) or "none"
    if is_unjudged(row, names):
        raise DataError(
            f"{row.place}: the pairs have no choice (columns {listed}): label them with ppo-workbench label --data, "
            "or name the column of the choice, as in --column choice=better"
        )
    if {"completion", "label"} <= has:
        raise DataError(f"{row.place}: unpaired rows (columns {listed}) compare nothing: give a source of pairs")
    raise DataError(
        f"{row.place}: the columns are {listed}; preferences have {names.prompt}, {names.chosen} and {names.rejected}, "
        f"or {names.prompt}, {names.a}, {names.b} and {names.choice}, or completions and ranking: name them, as in "
        "`preferences import --column prompt=question`"
    )


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """Result of writing preferences: rows in the file, and how much was left out, by reason."""

    path: Path
    rows: int
    left_out: dict[str, int]


def write_preferences(
    preferences: Iterable[Preference],
    path: Path,
    *,
    format: str,
    ties: Ties = "keep",
    provenance: bool = False,
    overwrite: bool = False,
) -> ExportSummary:
    """Write `preferences` to `path` in one of FORMATS_OUT.

    ties: keep those that the format can hold, or drop all of them. provenance: add columns with everything else that is
    known: origins, judgement, the source's other columns. overwrite: replace an existing file.

    Raises UsageError for an unknown format, a suffix that the format does not support, and an existing file; DataError
    if nothing is left to write, or if text and messages are mixed in a format that keeps both as they are; StorageError
    if the file cannot be written. On an error, nothing is left behind.
    """
    if format not in FORMATS_OUT:
        raise UsageError(f"format '{format}': must be one of {', '.join(FORMATS_OUT)}")
    chosen = FORMATS_OUT[format]
    if path.suffix.lower() not in chosen.suffixes:
        raise UsageError(f"'{path}': format {format} is written to {' or '.join(chosen.suffixes)}")
    options, count = WriteOptions(ties, provenance, Counter()), 0

    def made() -> Iterator[Row]:
        nonlocal count
        is_text = None
        assert chosen.rows is not None
        for preference in preferences:
            texts = (preference.comparison.prompt, *preference.comparison.completions)
            mixed = len({isinstance(text, str) for text in texts}) > 1
            as_chat = not chosen.verbatim and (chosen.conversational or mixed)
            for row in chosen.rows(_conversation(preference) if as_chat else preference, options):
                count += 1
                first = isinstance(next(iter(row.values())), str)
                is_text = first if is_text is None else is_text
                if first != is_text and not chosen.verbatim:  # other trainers assume that all rows are like the first
                    kinds = ("text", "messages") if is_text else ("messages", "text")
                    raise DataError(
                        f"format {format}: row 1 is {kinds[0]}, row {count} is {kinds[1]}: write messages for all, "
                        "with trl-conversational or kto-conversational"
                    )
                yield row
        if not count:
            reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(options.left_out.items()))
            raise DataError(
                f"no preference to write as {format}: {f'left out {reasons}' if reasons else 'there are none'}"
            )

    write_rows(path, made(), overwrite=overwrite)
    return ExportSummary(path, count, dict(sorted(options.left_out.items())))


def _conversation(preference: Preference) -> Preference:
    """Return `preference` with chat messages as its prompt and completions."""
    comparison = preference.comparison
    prompt, completions = as_messages(comparison.prompt, comparison.completions)
    return replace(preference, comparison=replace(comparison, prompt=prompt, completions=completions))


def write_rows(path: Path, rows: Iterable[Row], *, overwrite: bool) -> None:
    """Write `rows`, at least one and all with the same keys, to the file `path`, by its suffix. Creates its folder.

    Raises UsageError if `path` exists and may not be overwritten, DataError for a value that the suffix cannot hold,
    and StorageError if the file cannot be written. On an error, nothing is left behind, and an existing file stays as
    it was.
    """
    refusal = UsageError(f"'{path}' exists: choose another name, or overwrite it with --force")
    with storage_error(f"cannot write '{path}'", "choose another place"):
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
                        writer: csv.DictWriter[str] | None = None
                        for row in rows:
                            if writer is None:
                                writer = csv.DictWriter(text, list(row))
                                writer.writeheader()
                            if any(isinstance(value, list) for value in row.values()):
                                raise DataError("CSV cannot hold messages: write .jsonl or .parquet")
                            cells = row.items()
                            writer.writerow({k: plain_json(one) if isinstance(one, dict) else one for k, one in cells})
                    else:
                        text.writelines(plain_json(row) + "\n" for row in rows)
                finally:
                    text.detach()  # else it would close the file
            if path.exists() and not overwrite:
                raise refusal


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
