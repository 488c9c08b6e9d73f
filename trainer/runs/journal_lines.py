"""Lines of a journal: the event in each, and where they are in the file, found from its end."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, BinaryIO, cast, get_args, get_origin, get_type_hints

from pydantic_core import CoreSchema, SchemaValidator, from_json
from pydantic_core import core_schema as schemas

from trainer.events import EVENT_TYPES, Event

TimedEvent = tuple[float, Event]  # unix seconds

_BLOCK_BYTES = 512 * 1024
_TAIL_BYTES = 16 * 1024 * 1024
_END_OF_TIME = 253_402_300_800 - 2 * 86_400  # of dates, in any time zone
# Within a JSON string the quotes are escaped, so no text of a model matches.
_ITERATION = re.compile(rb'"event": ?"(?:iteration|reward_model_step|dpo_step)"')
_ITERATION_OR_START = re.compile(rb'"event": ?"(?:iteration|reward_model_step|dpo_step|run)"')


def values_in(line: bytes) -> dict[str, Any]:
    """Return the object in `line`. Raises ValueError if there is none."""
    try:
        try:
            values = from_json(line)  # three times as fast as json, but refuses lone surrogates
        except ValueError:
            values = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("it was cut or damaged") from None
    if not isinstance(values, dict):
        raise ValueError("it is not a JSON object")
    return values


def event_in(values: dict[str, Any]) -> Event | None:
    """Return the event in `values`, None for an unknown kind.

    Raises ValueError if fields of its kind are missing or of another type, as a newer version may write them.
    """
    kind, time = values.get("event"), values.get("time")
    is_time = isinstance(time, int | float) and not isinstance(time, bool) and 0 <= time < _END_OF_TIME
    if isinstance(kind, str) and is_time:
        with contextlib.suppress(ValueError):
            return event_from_dict(values)
    raise ValueError(f"not a complete event (kind {kind!r})")


def event_from_dict(values: dict[str, Any]) -> Event | None:
    """Return the event that `as_dict` gave, or None for a kind that this version does not know.

    Unknown fields are dropped, absent numbers become NaN. Raises ValueError if a field is missing or of another type.
    """
    kind = values.get("event", "")
    return _validator(kind).validate_python(values) if kind in EVENT_TYPES else None


def parsed(lines: Sequence[bytes]) -> list[TimedEvent | None]:
    """Parse `lines`, ignoring the header and kinds of events that only a newer version knows.

    None stands for a line that cannot be read.
    """
    found: list[TimedEvent | None] = []
    for line in lines:
        try:
            values = values_in(line)
            event = None if "journal" in values else event_in(values)
        except ValueError:
            found.append(None)
            continue
        if event is not None:
            found.append((values["time"], event))
    return found


def iterations_and_starts(data: bytes) -> tuple[list[TimedEvent], int]:
    """Return the iterations, of any kind of run, and RunStarteds in `data`, and how many of them cannot be read.

    Other lines are not parsed.
    """
    lines = [line for line in data.split(b"\n") if _ITERATION_OR_START.search(line)]
    events = [event for event in parsed(lines) if event is not None]
    return events, len(lines) - len(events)


def newest_iterations(file: BinaryIO, count: int) -> int:
    """Return the offset of the line in `file` that begins its newest `count` Iterations; 0 if it has fewer.

    If those lie further back, return the offset of a line about 16 MiB before the end.
    """
    begin = size = file.seek(0, os.SEEK_END)
    while begin and size - begin < _TAIL_BYTES:
        begin, data = lines_before(file, begin, _BLOCK_BYTES)
        found = [match.start() for match in _ITERATION.finditer(data)]
        if len(found) >= count:
            return begin + data.rfind(b"\n", 0, found[-count]) + 1
        count -= len(found)
    return begin


def lines_before(file: BinaryIO, end: int, size: int) -> tuple[int, bytes]:
    """Return the lines of `file` within the `size` bytes before the offset `end`, preceded by their own offset.

    There is at least one line, however long. end: where a line begins, or the end of the file.
    """
    while True:
        start = max(end - size, 0)
        file.seek(start)
        data = file.read(end - start)
        cut = data.find(b"\n", 0, len(data) - 1) + 1 if start else 0
        if cut or not start:
            return start + cut, data[cut:]
        size *= 4


@functools.cache
def _validator(kind: str) -> SchemaValidator:
    return SchemaValidator(_schema(EVENT_TYPES[kind]))


def _schema(hint: Any) -> CoreSchema:
    """Return pydantic's schema of what a journal may hold for a value of type `hint`.

    It is looser than the type in two ways: a number may be null or absent (NaN), and a text may be one that only a
    newer version knows, also where this one lists the possible texts.
    """
    if is_dataclass(hint):
        return _record_schema(cast("type", hint))
    match get_origin(hint), get_args(hint):
        case (origin, [item]) if origin is list:
            return schemas.list_schema(_schema(item), strict=True)
        case (origin, [key, item]) if origin is dict:
            return schemas.dict_schema(_schema(key), _schema(item), strict=True)
        case (origin, [item, _]) if origin is UnionType:
            return schemas.nullable_schema(_schema(item))
    return _SCHEMAS.get(hint) or schemas.str_schema(strict=True)


def _record_schema(record: type) -> CoreSchema:
    hints, members = get_type_hints(record), []
    for f in fields(record):
        member = _schema(hints[f.name])
        if f.default_factory is not MISSING:
            member = schemas.with_default_schema(member, default_factory=f.default_factory)
        elif f.default is not MISSING:
            member = schemas.with_default_schema(member, default=f.default)
        members.append(schemas.dataclass_field(f.name, member, kw_only=True))
    extra: schemas.ExtraBehavior = "ignore" if issubclass(record, Event) else "forbid"
    arguments = schemas.dataclass_args_schema(record.__name__, members, extra_behavior=extra)
    return schemas.dataclass_schema(record, arguments, [f.name for f in fields(record)], slots=True, frozen=True)


_NUMBER = schemas.union_schema(
    [
        schemas.float_schema(strict=True),
        schemas.no_info_after_validator_function(lambda _: math.nan, schemas.none_schema()),
    ],
    mode="left_to_right",
)
_SCHEMAS: dict[Any, CoreSchema] = {
    float: schemas.with_default_schema(_NUMBER, default=math.nan),
    int: schemas.int_schema(strict=True, ge=-(2**63), lt=2**63),  # larger ones are no count, and fit no column
    bool: schemas.bool_schema(strict=True),
    Any: schemas.any_schema(),
}
