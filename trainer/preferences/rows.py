"""Preferences, items and plans as plain JSON values, and back: in the rows of a store, and in rows of the format k-way.

The rules of the fields are tables. Every error names the place, the field, the value and the rule.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, get_args

from trainer.errors import DataError, shortened
from trainer.preferences.records import (
    LATEST,
    STRENGTHS,
    Comparison,
    Item,
    Judgement,
    Origin,
    Preference,
    Queue,
    QueuePlan,
    SessionPlan,
    Text,
    Verdict,
    columns_at,
)

VERSION = 1  # of the format k-way
Row = dict[str, Any]
Rules = Mapping[str, tuple[Callable[[Any], bool], str]]
"""By field: whether a value fits, and what it must be."""

DAMAGES = (DataError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""Exceptions that reading a damaged row raises."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_QUEUES, _VERDICTS = get_args(Queue), get_args(Verdict)


def is_number(value: Any) -> bool:
    """Return whether `value` is a finite number."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # no float is that large
        return False


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_list_of(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(fits, value))


_TEXT = (_is_text, "a string")
_TEXTS = (lambda value: _is_list_of(value, _is_text), "a list of strings")
_WHOLE = (_is_whole, "a whole number")
_NUMBER = (is_number, "a number")
_JUDGEMENT: Rules = {
    "verdict": (lambda value: value in _VERDICTS, f"one of {', '.join(_VERDICTS)}"),
    "strength": (lambda value: _is_whole(value) and value in STRENGTHS, f"one of {', '.join(map(str, STRENGTHS))}"),
    "labeller": _TEXT,
    "note": _TEXT,
    "flags": _TEXTS,
    "seconds": (lambda value: is_number(value) and 0 <= value < LATEST, f"a number from 0 to {LATEST:,}"),
    "guidelines": _TEXT,
    "time": (lambda value: is_number(value) and 0 <= value < LATEST, f"seconds since 1970, below {LATEST:,}"),
}
_ORIGIN: Rules = {
    **dict.fromkeys(("source", "run", "checkpoint", "writer"), _TEXT),
    **dict.fromkeys(("iteration", "row"), _WHOLE),
}
_QUEUE: Rules = {
    "queue": (lambda value: value in _QUEUES, "a queue"),
    "weight": _NUMBER,
    **dict.fromkeys(("source", "model"), _TEXT),
    **dict.fromkeys(("keys", "columns"), _TEXTS),
}
_PLAN: Rules = {"repeats": _NUMBER, "random": _NUMBER, "limit": _WHOLE, "seed": _WHOLE}
_NAMES = {record: tuple(field.name for field in fields(record)) for record in (Origin, Judgement)}
K_WAY_FIELDS = ("version", "prompt", "completions", *_NAMES[Judgement], "origins", "columns")


def values_of(record: Origin | Judgement) -> Row:
    """Return the fields of a record by name, as JSON returns them."""
    return {name: _listed(getattr(record, name)) for name in _NAMES[type(record)]}


def _listed(value: Any) -> Any:
    return [*map(_listed, value)] if isinstance(value, tuple) else value


def _filled(values: Row) -> Row:
    return {name: value for name, value in values.items() if value not in ("", None, [], {})}


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


def checked(values: Row, rules: Rules, place: str) -> Row:
    """Return the fields of `values` that have a rule and are not null; lists become tuples. Raises DataError."""
    found = {}
    for name, (fits, rule) in rules.items():
        if (value := values.get(name)) is None:
            continue
        if not fits(value):
            raise DataError(f"{place}: {name} is {shortened(repr(value))}: must be {rule}")
        found[name] = tuple(value) if isinstance(value, list) else value
    return found


def read_judgement(values: Row, k: int, place: str) -> Judgement:
    """Build a judgement of `k` completions from some or all of its fields. Raises DataError."""
    ranking, order = values.get("ranking") or [], values.get("order_shown") or []
    known = checked(values, _JUDGEMENT, place)
    verdict = known.get("verdict", "ranked")
    fits = _is_list_of(ranking, lambda group: bool(group) and _is_list_of(group, _is_whole))
    places = sorted(one for group in ranking for one in group) if fits else None
    if places != (list(range(k)) if verdict == "ranked" else []):
        rule = f"groups of the places 0 to {k - 1}, best first, as in [[1], [0, 2]]"
        rule = rule if verdict == "ranked" else f"left out where the verdict is {verdict}"
        raise DataError(f"{place}: ranking is {shortened(repr(ranking))}: must be {rule}")
    if not _is_list_of(order, _is_whole) or len({*order}) < len(order) or not {*order} <= {*range(k)}:
        raise DataError(
            f"{place}: order_shown is {shortened(repr(order))}: must be places from 0 to {k - 1}, none twice"
        )
    return Judgement(ranking=tuple(map(tuple, ranking)), order_shown=tuple(order), **known)


def read_origin(values: Any, place: str) -> Origin:
    """Build an origin; its sampling is an object or the JSON of one. Raises DataError."""
    if not isinstance(values, dict):
        raise DataError(f"{place}: an origin must be an object")
    sampling = from_json(values.get("sampling") or {}, place, "sampling")
    if not isinstance(sampling, dict):
        raise DataError(f"{place}: sampling must be an object")
    return Origin(sampling=sampling, **checked(values, _ORIGIN, place))


def read_comparison(values: Row, place: str) -> Comparison:
    """Build a comparison from its fields. Raises DataError."""
    given = completions_of(values, place)
    origins, columns = values.get("origins") or [], values.get("columns") or {}
    if not isinstance(origins, list) or len(origins) not in (0, len(given)):
        raise DataError(f"{place}: origins must be a list of {len(given)}, one for each completion, or left out")
    if not isinstance(columns, dict):
        raise DataError(f"{place}: columns is {shortened(repr(columns))}: must be an object")
    return Comparison(
        prompt=text(cell(values, "prompt", place), place, "column 'prompt'"),
        completions=tuple(text(one, place, f"completion {number}") for number, one in enumerate(given, 1)),
        origins=tuple(read_origin(origin, place) for origin in origins),
        columns=columns,
    )


def cell(values: Row, name: str, place: str) -> Any:
    """Return the value of the column `name`. Raises DataError if there is none."""
    if name not in values:
        raise DataError(f"{place}: no column '{name}': the columns are {', '.join(map(str, values)) or 'none'}")
    return values[name]


def completions_of(values: Row, place: str) -> list[Any]:
    """Return the column `completions`. Raises DataError unless it is a list of two or more."""
    found = cell(values, "completions", place)
    if not isinstance(found, list) or len(found) < 2:
        raise DataError(f"{place}: completions is {shortened(repr(found))}: must be a list of two or more")
    return found


def text(value: Any, place: str, name: str) -> Text:
    """Return `value` as plain text or messages, which keep only role and content. Raises DataError."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        messages = [{"role": one.get("role"), "content": _joined(one.get("content"))} for one in value]
        if all(isinstance(one, str) for message in messages for one in message.values()):
            return messages
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
        return as_utf8(_ENCODER.encode(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"cannot save this preference: {error}; give plain JSON values") from None


def as_utf8(text: str) -> str:
    r"""Write lone surrogates, which UTF-8 cannot encode, as \udc80: in JSON that is the same character."""
    return text.encode("utf-8", "backslashreplace").decode()


def guidelines_hash(text: str) -> str:
    """Return the hash that identifies guidelines in sessions and labels: 32 hex digits; empty for no text."""
    return hashlib.sha256(as_utf8(text).encode()).hexdigest()[:32] if text else ""


def checked_preference(preference: Preference) -> Preference:
    """Return `preference` as a store returns it. Raises DataError if it makes no sense, for it would stay there."""
    values, place = preference_values(preference), "cannot save this preference"
    comparison = read_comparison(values, place)
    judgement = read_judgement(values, len(comparison.completions), place)
    return Preference(comparison=comparison, judgement=judgement)


def in_stored_order(preference: Preference, stored: Comparison) -> Preference:
    """Return `preference` with the completions in the order of `stored`, which has the same key."""
    given = preference.comparison
    places = range(len(given.completions)) if given is stored else stored.order_of(given)
    origins = dict(zip(places, given.origins, strict=False))  # none are given, or one per place
    comparison = replace(
        given,
        completions=stored.completions,
        origins=tuple(origins[place] for place in sorted(origins)),
        columns=columns_at(given.columns, sorted(range(len(places)), key=places.__getitem__), len(places)),
    )
    return Preference(comparison=comparison, judgement=preference.judgement.reordered(places))


def stored_comparison(*columns: str) -> Comparison:
    """Build a comparison from the JSON in a store's row. Raises one of DAMAGES."""
    names = ("prompt", "completions", "origins", "columns")
    return read_comparison(dict(zip(names, map(json.loads, columns), strict=True)), "row")


def comparison_columns(comparison: Comparison) -> tuple[str, str, str, str]:
    """Return the JSON that `stored_comparison` reads. Raises DataError if the columns are not JSON values."""
    origins = [_filled(values_of(origin)) for origin in comparison.origins]
    return as_json(comparison.prompt), as_json(comparison.completions), as_json(origins), as_json(comparison.columns)


def label_values(judgement: Judgement) -> Row:
    """Return the fields of a label that are not empty; without the labeller, who has a column."""
    return _filled(values_of(judgement) | {"labeller": None})


def payload(values: Row, given: Comparison, stored: Comparison) -> str:
    """Return `values` as JSON, with the origins and columns of `given` if they differ from those of `stored`."""
    if given.origins and given.origins != stored.origins:
        values = values | {"origins": [_filled(values_of(origin)) for origin in given.origins]}
    if given.columns and given.columns != stored.columns:
        values = values | {"columns": given.columns}
    return as_json(values)


def _as_given(payload: str, stored: Comparison) -> tuple[Row, Comparison]:
    """Return the values in a payload, and `stored` with the origins and columns that came with them."""
    values = json.loads(payload)
    if values.keys() - {*K_WAY_FIELDS}:
        raise ValueError(f"unknown field in {shortened(payload)}")
    if "origins" in values:
        stored = replace(stored, origins=tuple(read_origin(origin, "row") for origin in values["origins"]))
    return values, replace(stored, columns=dict(values["columns"])) if "columns" in values else stored


def stored_label(id_: int, labeller: str, payload: str, stored: Comparison) -> Preference:
    """Build the label `id_` on `stored`, with the origins and columns that came with it. Raises one of DAMAGES."""
    values, comparison = _as_given(payload, stored)
    judgement = read_judgement(values | {"labeller": labeller}, len(stored.completions), "row")
    return Preference(comparison=comparison, judgement=judgement, id=id_)


def stored_item(queue: Queue, payload: str, repeats: int | None, stored: Comparison) -> Item:
    """Build the item on `stored`, with the origins and columns that came with it. Raises one of DAMAGES."""
    values, comparison = _as_given(payload, stored)
    order = tuple(values["order_shown"])
    if queue not in _QUEUES or not isinstance(repeats, int | None):
        raise ValueError("unknown queue, or an invalid repeated label")
    if sorted(order) != [*range(len(comparison.completions))]:
        raise ValueError("order_shown does not name each completion once")
    return Item(comparison=comparison, queue=queue, order=order, repeats=repeats or 0)


def stored_plan(text: str) -> SessionPlan:
    """Build the plan in a session's row from JSON with its fields by name. Raises one of DAMAGES."""
    values = json.loads(text)
    queues = tuple(QueuePlan(**checked(queue, _QUEUE, "row")) for queue in values["queues"])
    return SessionPlan(queues=queues, **checked(values, _PLAN, "row"))


def row_problem(what: str, *values: Any) -> str:
    """Return the problem with the columns of a store's row; empty for none. Raises one of DAMAGES.

    what: comparison, event, guidelines, session or session item.
    """
    if what == "guidelines":
        key, text = values
        fits = isinstance(text, str) and guidelines_hash(text) == key
        return "" if fits else "their hash does not match their text"
    if what == "session":
        stored_plan(*values)
        return ""
    if what == "comparison":
        key, *columns = values
        return "" if stored_comparison(*columns).key == key else "its key does not match its prompt and completions"
    try:
        comparison = stored_comparison(*values[3:])
    except DAMAGES:
        return ""  # reported with the comparison
    if what == "session item":
        queue, payload, repeats = values[:3]
        stored_item(queue, payload, repeats, comparison)
        return ""
    labeller, payload, choice = values[:3]
    fits = (stored_label(0, labeller, payload, comparison).judgement.choice or "ranking") == choice
    return "" if fits else f"its choice '{choice}' does not match its payload"
