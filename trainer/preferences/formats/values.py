"""Names of columns, and checked values of a row: every error names the row's place, the column, the value, the rule."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from trainer.data import is_message
from trainer.data.readers import SourceRow
from trainer.errors import DataError, UsageError, shortened
from trainer.preferences.records import Text, contents

_as_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_as_utf8_json = json.JSONEncoder(ensure_ascii=False, default=str).encode
Fits = Callable[[Any], bool]


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


def cell(row: SourceRow, name: str) -> Any:
    """Return the value of the column `name`. Raises DataError if there is none."""
    try:
        return row.columns[name]
    except KeyError:
        listed = ", ".join(map(str, row.columns)) or "none"
        raise DataError(f"{row.place}: no column '{name}': the columns are {listed}") from None


def text_cell(row: SourceRow, name: str) -> Text:
    """Return the text or messages of the column `name`. Raises DataError for anything else."""
    return text(cell(row, name), row.place, f"column '{name}'")


def prompt_cell(row: SourceRow, name: str) -> Text:
    """Return the text or messages of the column `name`, as `text_cell` does. Raises DataError if they are blank."""
    prompt = text_cell(row, name)
    if not "".join(contents(prompt)).strip():
        raise DataError(f"{row.place}: column '{name}' is empty: remove the row")
    return prompt


def completion_cells(row: SourceRow) -> list[Any]:
    """Return the column `completions`. Raises DataError unless it is a list of two or more."""
    completions = cell(row, "completions")
    if not isinstance(completions, list) or len(completions) < 2:
        raise DataError(f"{row.place}: completions is {shortened(repr(completions))}: must be a list of two or more")
    return completions


def text(value: Any, place: str, name: str) -> Text:
    """Return `value` as plain text or messages, which keep only role and content. Raises DataError."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        messages = [one | {"content": _joined(one.get("content"))} if isinstance(one, dict) else one for one in value]
        if all(map(is_message, messages)):
            return [{"role": message["role"], "content": message["content"]} for message in messages]
    raise DataError(
        f'{place}: {name} is {shortened(repr(value))}: must be a string, or a list of messages {{"role": "user", '
        '"content": "..."}'
    )


def _joined(content: Any) -> Any:
    """Return the content of a message as text if it is in parts that are all text, as in {"type": "text", ...}."""
    if not isinstance(content, list):
        return content
    parts = [one.get("text") if isinstance(one, dict) and one.get("type") == "text" else None for one in content]
    return "".join(parts) if all(isinstance(part, str) for part in parts) else None  # type: ignore[arg-type]


def other_columns(row: SourceRow, *used: str) -> dict[str, Any]:
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
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return str(value)


def plain_json(value: Any) -> str:
    """Return `value` as JSON text, made plain."""
    return _as_json(plain(value))


def from_json(value: Any, place: str, name: str) -> Any:
    """Return `value`, parsed if it is text. Raises DataError.

    CSV and Parquet store what has no fixed shape as JSON.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise DataError(f"{place}: {name} is {shortened(repr(value))}: must be JSON") from None


def checked_fields(values: dict[str, Any], rules: Mapping[str, tuple[Fits, str]], place: str) -> dict[str, Any]:
    """Return the fields of `values` that are in `rules` and not null; lists become tuples.

    rules: by field, whether a value fits, and what it must be, for the error. Raises DataError.
    """
    found = {}
    for name, (fits, rule) in rules.items():
        value = values.get(name)
        if value is None:
            continue
        if not fits(value):
            raise DataError(f"{place}: {name} is {shortened(repr(value))}: must be {rule}")
        found[name] = tuple(value) if isinstance(value, list) else value
    return found


def number_of(value: Any) -> Any:
    """Return `value` as a whole number if it is or stands for one, as in CSV ("2", "2.0"), Parquet with nulls (2.0)."""
    if isinstance(value, str) and len(value) < 20 and value.strip().removesuffix(".0").isdecimal():
        return int(value.strip().removesuffix(".0"))
    return int(value) if isinstance(value, float) and value.is_integer() else value


def is_number(value: Any) -> bool:
    """Return whether `value` is a finite number."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # no float is that large
        return False


def check_encodable(row: SourceRow) -> None:
    """Raise DataError for a lone surrogate anywhere in the row: no file and no database can hold it."""
    try:
        _as_utf8_json(row.columns).encode()
    except UnicodeEncodeError as error:
        unit = f"\\u{ord(error.object[error.start]):04x}"
        raise DataError(f"{row.place}: has half a surrogate pair ({unit}), which is not text: remove it") from None
