"""Conversion of comparisons, judgements, items and plans to the values of a store's rows, and back.

Empty fields are left out of the JSON; text stays readable in it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from trainer.errors import DataError
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
    columns_at,
)

Record = TypeVar("Record", Origin, Judgement, QueuePlan, SessionPlan)
QUEUES = get_args(Queue)

DAMAGES = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""Exceptions that reading a damaged row raises."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_EMPTY: tuple[Any, ...] = ("", None, (), {})


def check_preference(preference: Preference) -> None:
    """Raise DataError if `preference` makes no sense, because what is in a store stays there."""
    if rule := _broken_rule(preference):
        raise DataError(f"cannot save this preference: {rule}; correct it where it is made")


def _broken_rule(preference: Preference) -> str:
    """Return the rule that `preference` breaks; empty for none."""
    comparison, judgement = preference.comparison, preference.judgement
    k = len(comparison.completions)
    places = sorted(place for group in judgement.ranking for place in group)
    if not all(map(_is_text, (comparison.prompt, *comparison.completions))):
        return "prompt and completions must be text, or messages with role and content"
    if k < 2:
        return f"a comparison needs at least 2 completions; this one has {k}"
    if len(comparison.origins) not in (0, k):
        return f"give an origin for all {k} completions or for none, not for {len(comparison.origins)}"
    if judgement.verdict == "ranked" and (places != list(range(k)) or () in judgement.ranking):
        return f"ranking = {judgement.ranking}: must name each place from 0 to {k - 1} once"
    if judgement.verdict not in ("ranked", "both_bad", "skip"):
        return f"verdict = {judgement.verdict!r}: must be ranked, both_bad or skip"
    if judgement.verdict != "ranked" and judgement.ranking:
        return f"verdict {judgement.verdict} must have no ranking, not {judgement.ranking}"
    if judgement.strength not in STRENGTHS:
        return f"strength = {judgement.strength!r}: must be 1, 2 or 3"
    if len(set(judgement.order_shown)) < len(judgement.order_shown) or not set(judgement.order_shown) <= {*range(k)}:
        return f"order_shown = {judgement.order_shown}: must name places 0 to {k - 1} at most once"
    for name, value in (("seconds", judgement.seconds), ("time", judgement.time)):
        if value is not None and not -LATEST < value < LATEST:  # reading would refuse such a float
            return f"{name} = {value}: must be below {LATEST:,}"
    return ""


def comparison_values(comparison: Comparison) -> tuple[str, str, str, str, str]:
    """Return key, prompt, completions, origins and columns. Raises DataError if the columns are not JSON values."""
    return (
        comparison.key,
        as_json(comparison.prompt),
        as_json(comparison.completions),
        as_json([_filled(origin) for origin in comparison.origins]),
        as_json(comparison.columns),
    )


def read_comparison(prompt: str, completions: str, origins: str, columns: str) -> Comparison:
    """Build the comparison in a row. Raises one of DAMAGES if the row is damaged."""
    values = [json.loads(value) for value in (prompt, completions, origins, columns)]
    if list(map(type, values[1:])) != [list, list, dict]:
        raise TypeError("completions, origins or columns are of another type")
    return Comparison(
        prompt=checked_text(values[0]),
        completions=tuple(map(checked_text, values[1])),
        origins=tuple(_typed(Origin(**origin)) for origin in values[2]),
        columns=values[3],
    )


def checked_text(value: Any) -> Text:
    """Return `value`, which was read from JSON. Raises one of DAMAGES if it is neither text nor messages."""
    if not _is_text(value):
        raise ValueError("neither text nor messages")
    text: Text = value
    return text


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


def label_values(preference: Preference, stored: Comparison) -> dict[str, Any]:
    """Return the fields of a label on `stored` by name.

    These are the judgement's fields, and origins and columns if they are given and differ from the stored ones.
    """
    return judgement_values(preference.judgement) | _values_given(preference.comparison, stored)


def judgement_values(judgement: Judgement) -> dict[str, Any]:
    """Return the fields of a judgement by name, as JSON returns them; without the labeller, who has a column."""
    values = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in _filled(judgement).items()
        if name != "labeller"
    }
    if "ranking" in values:
        values["ranking"] = [list(group) for group in values["ranking"]]
    return values


def choice_of(judgement: Judgement) -> str:
    """Return the value of the column `choice`."""
    return judgement.choice or "ranking"


def read_preference(id_: int, labeller: str, payload: str, comparison: Comparison) -> Preference:
    """Build the label `id_` on `comparison`, with the origins and columns that came with it.

    Raises one of DAMAGES if the payload is damaged.
    """
    values = json.loads(payload)
    comparison = _as_given(comparison, values)
    values["ranking"] = tuple(tuple(group) for group in values.get("ranking", ()))
    for name in ("flags", "order_shown"):
        values[name] = tuple(values.get(name, ()))
    judgement = _typed(Judgement(labeller=labeller, **values))
    preference = Preference(comparison=comparison, judgement=judgement, id=id_)
    if rule := _broken_rule(preference):
        raise ValueError(rule)
    return preference


def item_values(shown: Preference, stored: Comparison) -> dict[str, Any]:
    """Return the fields of an item by name, without its queue and what it repeats.

    shown: how the item is shown, with its completions in the order of `stored`.
    """
    return {"order_shown": list(shown.judgement.order_shown)} | _values_given(shown.comparison, stored)


def read_item(queue: Queue, payload: str, repeats: int | None, comparison: Comparison) -> Item:
    """Build the item on `comparison`, with the origins and columns that came with it.

    Raises one of DAMAGES if it is damaged.
    """
    values = json.loads(payload)
    comparison = _as_given(comparison, values)
    order = tuple(values["order_shown"])
    if queue not in QUEUES or not isinstance(repeats, int | None):
        raise ValueError("unknown queue, or an invalid repeated label")
    if sorted(order) != [*range(len(comparison.completions))]:
        raise ValueError("order_shown does not name each completion once")
    return Item(comparison=comparison, queue=queue, order=order, repeats=repeats or 0)


def read_plan(text: str) -> SessionPlan:
    """Build the plan in a session's row from JSON with its fields by name. Raises one of DAMAGES if it is damaged."""
    values = json.loads(text)
    queues = (
        _typed(QueuePlan(**queue | {name: tuple(queue.get(name, ())) for name in ("models", "keys", "columns")}))
        for queue in values.pop("queues")
    )
    return _typed(SessionPlan(queues=tuple(queues), **values))


def guidelines_hash(text: str) -> str:
    """Return the hash that identifies guidelines in sessions and labels: 32 hex digits; empty for no text."""
    return hashlib.sha256(as_utf8(text).encode()).hexdigest()[:32] if text else ""


def as_json(value: Any) -> str:
    """Return `value` as JSON text that can be encoded in UTF-8. Raises DataError if it is not a JSON value."""
    try:
        return as_utf8(_ENCODER.encode(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"cannot save this preference: {error}; give plain JSON values") from None


def as_utf8(text: str) -> str:
    r"""Write lone surrogates, which UTF-8 cannot encode, as \udc80: in JSON that is the same character."""
    return text.encode("utf-8", "backslashreplace").decode()


def _values_given(given: Comparison, stored: Comparison) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if given.origins and given.origins != stored.origins:
        values["origins"] = [_filled(origin) for origin in given.origins]
    if given.columns and given.columns != stored.columns:
        values["columns"] = given.columns
    return values


def _as_given(stored: Comparison, values: dict[str, Any]) -> Comparison:
    """Return `stored` with the origins and columns from `values`, which are removed from these."""
    if "origins" in values:
        stored = replace(stored, origins=tuple(_typed(Origin(**origin)) for origin in values.pop("origins")))
    if "columns" in values:
        stored = replace(stored, columns=dict(values.pop("columns")))
    return stored


def _typed(record: Record) -> Record:
    """Return `record`; raise TypeError if a field has the wrong type, as in a row that another program wrote.

    Raises ValueError for NaN and for numbers that are too large.
    """
    for name, types, members in _TYPES[type(record)]:
        value: Any = getattr(record, name)
        sound = isinstance(value, types)
        if not sound or (members and not all(isinstance(member, members) for member in value)):
            raise TypeError(f"{name} is {value!r:.60}")
        if isinstance(value, float) and not -LATEST < value < LATEST:  # NaN too
            raise ValueError(f"{name} is {value}")
    return record


def _is_text(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(message["role"], str) and isinstance(message["content"], str) for message in value)
    return isinstance(value, str)


def _filled(record: Origin | Judgement) -> dict[str, Any]:
    values = ((name, getattr(record, name)) for name, _, _ in _TYPES[type(record)])
    return {name: value for name, value in values if value not in _EMPTY}


def _types(hint: Any) -> tuple[Any, Any]:
    """Return the types of a value with this annotation, and those of its members; None for any."""
    kind, inner = get_origin(hint), get_args(hint)
    if kind is tuple:
        return tuple, _types(inner[0])[0]
    if kind is UnionType:
        return tuple(_types(one)[0] for one in inner), None
    if kind is Literal:  # which text it is, rules check
        return str, None
    return (float, int) if hint is float else kind or hint, None


_TYPES = {  # name, types, types of the members
    record: tuple((name, *_types(hint)) for name, hint in get_type_hints(record).items())
    for record in (Origin, Judgement, QueuePlan, SessionPlan)
}
