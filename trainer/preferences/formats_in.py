"""Preferences from files and datasets, in every format that others publish them in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

from trainer.data.files import SourceRow
from trainer.errors import DataError, UsageError
from trainer.preferences.conversations import ASSISTANT, HUMAN, as_messages
from trainer.preferences.formats.columns import read_columns
from trainer.preferences.formats.k_way import read_k_way
from trainer.preferences.formats.trl import read_hh, read_trl, read_trl_implicit
from trainer.preferences.formats.ultrafeedback import read_ultrafeedback
from trainer.preferences.formats.values import ColumnNames, check_encodable
from trainer.preferences.rankings import ranked_pairs, what_it_says
from trainer.preferences.records import Preference
from trainer.preferences.sources import source_rows

__all__ = ["FORMATS_IN", "ColumnNames", "Reading", "read_preferences"]

FORMATS_IN: dict[str, Callable[[SourceRow, ColumnNames, str], Preference]] = {
    "trl": read_trl,
    "trl-implicit": read_trl_implicit,
    "hh": read_hh,
    "ultrafeedback": read_ultrafeedback,
    "columns": read_columns,
    "k-way": read_k_way,
}
_TOLD = 20  # broken rows reported one by one


@dataclass(slots=True)
class Reading:
    """Preferences, read lazily and once. The counts cover the rows read so far.

    Iterating raises DataError at a broken row, unless broken rows are skipped.
    """

    source: str
    format: str  # one of FORMATS_IN
    rows: int = 0  # broken ones included
    broken: int = 0
    duplicates: int = 0  # rows that say the same as an earlier one
    problems: list[str] = field(default_factory=list)  # the first broken rows: place and rule
    preferences: Iterator[Preference] = field(default_factory=lambda: iter(()), repr=False)

    def __iter__(self) -> Iterator[Preference]:
        return self.preferences


def read_preferences(
    source: str,
    *,
    format: str = "auto",
    split: str = "train",
    columns: ColumnNames | None = None,
    skip_broken: bool = False,
    conversational: bool = False,
) -> Reading:
    """Read `source`: a file (.jsonl, .jsonl.gz, .json, .csv, .parquet), a folder or a `datasets` name.

    format: one of FORMATS_IN, or auto: by the columns of the first row. split: of a dataset. columns: the source's
    names for its columns. skip_broken: leave out and count rows that break a rule. conversational: turn plain text and
    transcripts into chat messages.

    Raises UsageError for an unknown format, and DataError for a source that cannot be read, has no rows, or whose
    format cannot be recognised.
    """
    if format != "auto" and format not in FORMATS_IN:
        raise UsageError(f"format '{format}': must be one of auto, {', '.join(FORMATS_IN)}")
    names = columns or ColumnNames()
    reading = Reading(source, format)

    def broken(error: DataError) -> None:
        reading.rows += 1
        if not skip_broken:
            raise DataError(f"{error} (--skip-broken leaves such rows out)")
        reading.broken += 1
        if len(reading.problems) < _TOLD:
            reading.problems.append(str(error))

    rows = source_rows(source, split, broken)
    first = next(rows, None)
    if first is None:
        raise DataError(f"'{source}' has no rows" + "".join(f"; {problem}" for problem in reading.problems[:1]))
    if format == "auto":
        reading.format = _detect(first, names)
    reading.preferences = _preferences(reading, chain([first], rows), names, broken, conversational=conversational)
    return reading


def _preferences(
    reading: Reading,
    rows: Iterator[SourceRow],
    names: ColumnNames,
    broken: Callable[[DataError], None],
    *,
    conversational: bool,
) -> Iterator[Preference]:
    parse = FORMATS_IN[reading.format]
    seen: set[int] = set()
    for row in rows:
        try:
            check_encodable(row)
            preference = parse(row, names, reading.source)
            preference = _conversation(preference) if conversational else preference
            if parse is not read_k_way:
                _check_distinct(preference, row.place)
        except RecursionError:
            broken(DataError(f"{row.place}: nested too deeply"))
            continue
        except DataError as error:
            broken(error)
            continue
        reading.rows += 1
        said = what_it_says(preference)
        reading.duplicates += said in seen
        seen.add(said)
        yield preference


def _check_distinct(preference: Preference, place: str) -> None:
    completions = preference.comparison.completions
    if any(completions[better] == completions[worse] for better, worse in ranked_pairs(preference.judgement)):
        raise DataError(f"{place}: the chosen and the rejected completion are the same: take the row out")


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
    listed = ", ".join(map(str, has)) or "none"
    if {"completion", "label"} <= has:
        raise DataError(f"{row.place}: unpaired rows (columns {listed}) compare nothing: give a source of pairs")
    raise DataError(
        f"{row.place}: the columns are {listed}, preferences have {names.prompt}, {names.chosen} and {names.rejected}, "
        f"or {names.prompt}, {names.a}, {names.b} and {names.choice}, or completions and ranking: name them, as in "
        "--column prompt=question"
    )


def _conversation(preference: Preference) -> Preference:
    comparison = preference.comparison
    prompt, completions = as_messages(comparison.prompt, comparison.completions)
    return replace(preference, comparison=replace(comparison, prompt=prompt, completions=completions))
