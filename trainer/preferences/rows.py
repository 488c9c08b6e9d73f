"""Preferences as plain JSON values, and back: rows of the format k-way, and of a store, which splits one into two.

Every error names the place, the field, the value and the rule.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar, get_args

from pydantic import TypeAdapter, ValidationError

from trainer.errors import DataError, shortened
from trainer.preferences.records import (
    Comparison,
    Item,
    Judgement,
    Origin,
    Preference,
    Queue,
    SessionPlan,
    SessionRecord,
    Text,
)

VERSION = 1  # of the format k-way
Row = dict[str, Any]
Record = TypeVar("Record", Judgement, Origin, SessionPlan, SessionRecord)
K_WAY_FIELDS = ("version", "prompt", "completions", *(one.name for one in fields(Judgement)), "origins", "columns")

_EMPTY: tuple[Any, ...] = ("", None, (), [], {})
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_ADAPTERS: dict[Any, TypeAdapter[Any]] = {
    one: TypeAdapter(one) for one in (Judgement, Origin, SessionPlan, SessionRecord)
}


def read(record: type[Record], values: Mapping[str, Any], place: str) -> Record:
    """Build a record from its fields in `values`; null is a field that is left out. Raises DataError."""
    given = {one.name: values[one.name] for one in fields(record) if values.get(one.name) is not None}
    try:
        found: Record = _ADAPTERS[record].validate_python(given)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = str(problem["loc"][0])
        rule = problem["msg"].replace("valid integer", "whole number").replace("valid tuple", "list")
        rule = rule.replace("Input should be", "must be").replace("valid ", "")
        raise DataError(f"{place}: {name} is {shortened(repr(given.get(name)))}: {rule}") from None
    return found


def values_of(record: Origin | Judgement) -> Row:
    """Return the fields of a record by name."""
    return {one.name: getattr(record, one.name) for one in fields(record)}


def preference_values(preference: Preference) -> Row:
    """Return everything in `preference` but the id, which belongs to a store: a row of the format k-way."""
    comparison = preference.comparison
    return {
        "version": VERSION,
        "prompt": comparison.prompt,
        "completions": list(comparison.completions),
        **values_of(preference.judgement),
        "origins": [values_of(origin) for origin in comparison.origins],
        "columns": comparison.columns,
    }


def read_preference(values: Mapping[str, Any], place: str) -> Preference:
    """Build a preference from what `preference_values` returns, or only prompt, completions and ranking.

    Raises DataError.
    """
    given = completions_of(values, place)
    origins, columns = values.get("origins") or [], values.get("columns") or {}
    if not isinstance(origins, list) or len(origins) not in (0, len(given)):
        raise DataError(f"{place}: origins must be a list of {len(given)}, one for each completion, or left out")
    if not isinstance(columns, dict):
        raise DataError(f"{place}: columns is {shortened(repr(columns))}: must be an object")
    return Preference(
        comparison=Comparison(
            prompt=text(cell(values, "prompt", place), place, "column 'prompt'"),
            completions=tuple(text(one, place, f"completion {number}") for number, one in enumerate(given, 1)),
            origins=tuple(read_origin(origin, place) for origin in origins),
            columns=columns,
        ),
        judgement=read_judgement(values, len(given), place),
    )


def read_judgement(values: Mapping[str, Any], k: int, place: str) -> Judgement:
    """Build a judgement of `k` completions from some or all of its fields. Raises DataError."""
    found = read(Judgement, values, place)
    ranking, order = found.ranking, list(found.order_shown)
    places = sorted(one for group in ranking for one in group)
    if places != (list(range(k)) if found.verdict == "ranked" else []) or not all(ranking):
        rule = f"groups of the places 0 to {k - 1}, best first, as in [[1], [0, 2]]"
        rule = rule if found.verdict == "ranked" else f"left out where the verdict is {found.verdict}"
        raise DataError(f"{place}: ranking is {shortened(repr(values.get('ranking')))}: must be {rule}")
    if len({*order}) < len(order) or not {*order} <= {*range(k)}:
        raise DataError(f"{place}: order_shown is {shortened(repr(order))}: must be places 0 to {k - 1}, none twice")
    return found


def read_origin(values: Any, place: str) -> Origin:
    """Build an origin; its sampling is an object or the JSON of one. Raises DataError."""
    if not isinstance(values, dict):
        raise DataError(f"{place}: an origin must be an object")
    return read(Origin, values | {"sampling": from_json(values.get("sampling") or {}, place, "sampling")}, place)


def cell(values: Mapping[str, Any], name: str, place: str) -> Any:
    """Return the value of the column `name`. Raises DataError if there is none."""
    if name not in values:
        raise DataError(f"{place}: no column '{name}': the columns are {', '.join(map(str, values)) or 'none'}")
    return values[name]


def completions_of(values: Mapping[str, Any], place: str) -> list[Any]:
    """Return the column `completions`. Raises DataError unless it is a list of two or more."""
    found = cell(values, "completions", place)
    if not isinstance(found, list) or len(found) < 2:
        raise DataError(f"{place}: completions is {shortened(repr(found))}: must be a list of two or more")
    return found


def text(value: Any, place: str, name: str) -> Text:
    """Return `value` as plain text or messages, which keep only role and content. Raises DataError.

    A content in parts that are all text, as in {"type": "text", ...}, becomes one text.
    """
    if isinstance(value, str):
        return value
    messages: list[dict[str, Any]] = []
    for message in value if isinstance(value, list) else ():
        found = message if isinstance(message, dict) else {}
        content = found.get("content")
        if isinstance(content, list):
            parts: Any = [one.get("text") for one in content if isinstance(one, dict) and one.get("type") == "text"]
            whole = len(parts) == len(content) and all(isinstance(one, str) for one in parts)
            content = "".join(parts) if whole else None
        messages.append({"role": found.get("role"), "content": content})
    if messages and all(isinstance(one, str) for message in messages for one in message.values()):
        return messages
    raise DataError(
        f'{place}: {name} is {shortened(repr(value))}: must be a string, or a list of messages {{"role": "user", '
        '"content": "..."}'
    )


def from_json(value: Any, place: str, name: str) -> Any:
    """Return `value`, parsed if it is text, as CSV and Parquet store what has no fixed shape. Raises DataError."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise DataError(f"{place}: {name} is {shortened(repr(value))}: must be JSON") from None


def as_json(value: Any) -> str:
    """Return `value` as JSON text that can be encoded in UTF-8. Raises DataError if it is not a JSON value."""
    try:
        # A lone surrogate, which UTF-8 cannot encode, becomes its escape.
        return _ENCODER.encode(value).encode("utf-8", "backslashreplace").decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"cannot save this preference: {error}; give plain JSON values") from None


def as_utf8(text: str) -> str:
    r"""Write lone surrogates, which UTF-8 cannot encode, as \udc80: in JSON that is the same character."""
    return text.encode("utf-8", "backslashreplace").decode()


def guidelines_hash(text: str) -> str:
    """Return the hash that identifies guidelines in sessions and labels: 32 hex digits; empty for no text."""
    return hashlib.sha256(as_utf8(text).encode()).hexdigest()[:32] if text else ""


def payload(preference: Preference) -> str:
    """Return the JSON of what a store's row says besides prompt, completions and labeller. Raises DataError."""
    values = preference_values(preference)
    origins = [{k: v for k, v in one.items() if v not in _EMPTY} for one in values["origins"]]
    elsewhere = ("version", "prompt", "completions", "labeller")
    found = (values | {"origins": origins}).items()
    return as_json({k: v for k, v in found if k not in elsewhere and v not in _EMPTY})


def stored(payload: str, prompt: str, completions: str, **more: Any) -> Preference:
    """Build a preference from a store's JSON, and `more` of its fields. Raises DataError."""
    try:
        values = dict(zip(("prompt", "completions"), map(json.loads, (prompt, completions)), strict=True))
        return read_preference({**json.loads(payload), **values, **more}, "row")
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(repr(error)) from None


def stored_item(queue: Any, repeats: Any, *columns: str) -> Item:
    """Build an item from a store's row: a skip that shows all completions. Raises DataError."""
    shown = stored(*columns)
    if queue not in get_args(Queue) or not isinstance(repeats, int | None):
        raise DataError(f"row: the queue is {queue!r}, the repeated label {repeats!r}")
    if len(shown.judgement.order_shown) != len(shown.comparison.completions):
        raise DataError("row: order_shown does not name each completion once")
    return Item(comparison=shown.comparison, queue=queue, order=shown.judgement.order_shown, repeats=repeats or 0)


def stored_plan(text: Any) -> SessionPlan:
    """Build the plan in a session's row from JSON with its fields by name. Raises DataError."""
    values = from_json(text, "row", "plan")
    if not isinstance(values, dict) or "queues" not in values:
        raise DataError("row: the plan has no queues")
    return read(SessionPlan, values, "row")
