"""Columns of rows: their names, their values, and those that keep what another's format has no place for."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from os.path import commonprefix
from typing import Any, Literal, NamedTuple

from trainer.data.readers import SourceRow
from trainer.errors import DataError, UsageError
from trainer.preferences.records import ASSISTANT, HUMAN, Messages, Preference, Text, contents
from trainer.preferences.rows import Row, cell, from_json, read_origin, text, values_of

Ties = Literal["keep", "drop"]
SAME_COMPLETIONS = "the chosen and the rejected completion are the same: remove the row"

_as_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """A source's names for its columns; strength, labeller and note are read only if they are named.

    first: "0" or "1", the value of the choice that stands for the first completion where the source writes 0 and 1.
    """

    prompt: str = "prompt"
    chosen: str = "chosen"
    rejected: str = "rejected"
    a: str = "a"
    b: str = "b"
    choice: str = "choice"
    strength: str = ""
    labeller: str = ""
    note: str = ""
    first: str = ""

    @classmethod
    def of(cls, assignments: Iterable[str]) -> ColumnNames:
        """Return the names in `assignments`, as in "prompt=question". Raises UsageError."""
        roles = [field.name for field in fields(cls)]
        given: dict[str, str] = {}
        for assignment in assignments:
            role, equals, name = map(str.strip, assignment.partition("="))
            if role not in roles or not equals or not name:
                raise UsageError(f"column {assignment}: must be ROLE=NAME with one of {', '.join(roles)}")
            if role == "first" and name not in ("0", "1"):
                raise UsageError(f"column {assignment}: must be first=0 or first=1")
            given[role] = name
        return cls(**given)


class WriteOptions(NamedTuple):
    """Options of a file that is written. left_out: counts what a format leaves out, by reason."""

    ties: Ties
    provenance: bool
    left_out: Counter[str]


def text_cell(row: SourceRow, name: str) -> Text:
    """Return the text or messages of the column `name`. Raises DataError for anything else."""
    return text(cell(row.columns, name, row.place), row.place, f"column '{name}'")


def prompt_cell(row: SourceRow, name: str) -> Text:
    """Return the text or messages of the column `name`, as `text_cell` does. Raises DataError if they are blank."""
    prompt = text_cell(row, name)
    if not "".join(contents(prompt)).strip():
        raise DataError(f"{row.place}: column '{name}' is empty: remove the row")
    return prompt


def split_cells(row: SourceRow, first: str, second: str) -> tuple[Text, Text, Text]:
    """Split the texts of two columns into prompt and completions. Raises DataError."""
    one, other = text_cell(row, first), text_cell(row, second)
    parts: tuple[Text, Text, Text] | None = None
    if one == other and isinstance(one, str):  # nothing shows where the prompt ends
        raise DataError(f"{row.place}: {SAME_COMPLETIONS}")
    if isinstance(one, list) and isinstance(other, list):
        parts = split_messages(one, other)
    elif isinstance(one, str) and isinstance(other, str):
        both = one.startswith(HUMAN) and other.startswith(HUMAN)
        parts = split_transcripts(one, other) if both else split_texts(one, other)
    if parts is None or not parts[0]:
        raise DataError(
            f"{row.place}: {first} and {second} have no common beginning to be the prompt, or nothing after it: "
            "give the prompt a column of its own"
        )
    return parts


def split_transcripts(first: str, second: str) -> tuple[str, str, str] | None:
    """Split two transcripts into (prompt, first completion, second completion).

    The cut is after the last "Assistant:" of their common beginning. Prompt and completion together are the transcript,
    character by character. Returns None if the two share no assistant turn.
    """
    start = first.rfind(ASSISTANT, 0, len(commonprefix((first, second))))  # noqa: RUF071  texts
    end = start + len(ASSISTANT)
    return (first[:end], first[end:], second[end:]) if start >= 0 else None


def split_texts(first: str, second: str) -> tuple[str, str, str] | None:
    """Split two texts that begin alike into (prompt, first completion, second completion).

    The cut is before the last word boundary of what they share. A word that differs only after its first letters goes
    to the completions, whole, with the white space in front of it; so does the last shared word if one text ends there.
    Returns None if no word would be left for the prompt.
    """
    beginning = commonprefix((first, second))  # noqa: RUF071  texts
    after = first[len(beginning) :][:1], second[len(beginning) :][:1]
    if not beginning[-1:].isspace() and not all(one == "" or one.isspace() for one in after):
        beginning = _without_last_word(beginning)
    if min(len(first.rstrip()), len(second.rstrip())) <= len(beginning):
        beginning = _without_last_word(beginning)
    end = len(beginning.rstrip())
    return (first[:end], first[end:], second[end:]) if end else None


def _without_last_word(text: str) -> str:
    return text.rsplit(None, 1)[0] if len(text.split(None, 1)) > 1 else ""


def split_messages(first: Messages, second: Messages) -> tuple[Messages, Messages, Messages]:
    """Split two conversations into (prompt, first completion, second completion).

    The prompt is the messages that both begin with; each completion keeps at least one message, and begins with one of
    the assistant if any of those that both have is.
    """
    room = min(len(first), len(second)) - 1
    cut = next((place for place in range(room) if first[place] != second[place]), room)
    answers = (place for place in range(cut, 0, -1) if first[place]["role"] == second[place]["role"] == "assistant")
    cut = next(answers, cut)
    return first[:cut], first[cut:], second[cut:]


def other_columns(row: SourceRow, *used: str) -> Row:
    """Return the columns of a row that are not `used`, as plain JSON values."""
    return {str(name): plain(value) for name, value in row.columns.items() if name not in used}


def plain(value: Any) -> Any:
    """Return `value` as plain JSON: NaN and infinities become null, dates, decimals and the like text."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else str(value)


def plain_json(value: Any) -> str:
    """Return `value` as JSON text, made plain."""
    return _as_json(plain(value))


def number_of(value: Any) -> Any:
    """Return `value` as a whole number if it is or stands for one, as in CSV ("2", "2.0"), Parquet with nulls (2.0)."""
    if isinstance(value, str) and len(value) < 20 and value.strip().removesuffix(".0").isdecimal():
        return int(value.strip().removesuffix(".0"))
    return int(value) if isinstance(value, float) and value.is_integer() else value


def provenance_values(preference: Preference, sides: Sequence[str]) -> Row:
    """Return columns with what is known of `preference` besides its texts, whose completions are called `sides`.

    What has no fixed shape is JSON in a string there, so that every row has the same types.
    """
    comparison, judgement = preference.comparison, values_of(preference.judgement)
    del judgement["verdict"], judgement["ranking"]  # each format writes these its own way
    origins: list[Row | None] = [values_of(one) | {"sampling": plain_json(one.sampling)} for one in comparison.origins]
    names = [f"{side}_origin" for side in sides]
    values = dict(zip(names, origins or [None] * len(sides), strict=True))
    return {**values, "judgement": judgement, "columns": plain_json(comparison.columns)}


def read_provenance(row: SourceRow, sides: Sequence[str]) -> Row | None:
    """Return judgement, origins and columns in what `provenance_values` wrote; None if the row lacks one of them.

    Raises DataError.
    """
    names = [f"{side}_origin" for side in sides]
    if not row.columns.keys() >= {*names, "judgement", "columns"}:
        return None
    given = {name: from_json(row.columns[name] or None, row.place, name) for name in (*names, "judgement", "columns")}
    origins = tuple(read_origin(given[name], row.place) for name in names if given[name] is not None)
    if len(origins) not in (0, len(sides)):
        raise DataError(f"{row.place}: {' and '.join(names)} must be given together or not at all")
    for name in ("judgement", "columns"):
        if not isinstance(given[name] or {}, dict):
            raise DataError(f"{row.place}: {name} must be an object")
    return {"judgement": given["judgement"] or {}, "origins": origins, "columns": given["columns"] or {}}
