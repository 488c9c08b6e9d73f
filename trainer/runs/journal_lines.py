"""Lines of a journal: the event in each, and where they are in the file, found from its end."""

from __future__ import annotations

import functools
import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, BinaryIO

from trainer.events import EVENT_TYPES, Event, Fix, SamplePreview, event_from_dict

TimedEvent = tuple[float, Event]  # unix seconds

_BLOCK_BYTES = 512 * 1024
_TAIL_BYTES = 16 * 1024 * 1024
_END_OF_TIME = 253_402_300_800 - 2 * 86_400  # of dates, in any time zone
_LARGEST = 2**63  # no count is that large, and it fits no column
# Within a JSON string the quotes are escaped, so no text of a model matches.
_ITERATION = re.compile(rb'"event": ?"(?:iteration|reward_model_step|dpo_step)"')
_ITERATION_OR_START = re.compile(rb'"event": ?"(?:iteration|reward_model_step|dpo_step|run)"')
# By the name of the annotation; all others are str or its literals.
_TYPES: dict[str, tuple[type, ...]] = {
    "float": (float, int),
    "int": (int,),
    "int | None": (int, type(None)),
    "bool": (bool,),
    "dict": (dict,),
    "list": (list,),
}
_MEMBERS: dict[str, type[SamplePreview | Fix]] = {"preview": SamplePreview, "fix": Fix}  # of events' lists


def values_in(line: bytes) -> dict[str, Any]:
    """Return the object in `line`. Raises ValueError if there is none."""
    try:
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
    kind = values.get("event")
    try:
        if isinstance(kind, str) and _is_time(values.get("time")):
            for name in ("seconds", "parts", "evidence"):
                if isinstance(numbers := values.get(name), dict):
                    values[name] = {of: math.nan if number is None else number for of, number in numbers.items()}
            event = event_from_dict(values)
            if event is None or _is_sound(event, kind):
                return event
    except (TypeError, KeyError, AttributeError):
        pass
    raise ValueError(f"it is not a whole event (kind {kind!r})")


class Damaged:
    """Placeholder for a line that cannot be read."""


def parsed(lines: Sequence[bytes]) -> list[TimedEvent | Damaged]:
    """Parse `lines`, leaving out the header and kinds of events that only a newer version knows."""
    found: list[TimedEvent | Damaged] = []
    for line in lines:
        try:
            values = values_in(line)
            event = None if "journal" in values else event_in(values)
        except ValueError:
            found.append(Damaged())
            continue
        if event is not None:
            found.append((values["time"], event))
    return found


def iterations_and_starts(data: bytes) -> tuple[list[TimedEvent], int]:
    """Return the iterations, of any kind of run, and RunStarteds in `data`, and how many of them cannot be read.

    Other lines are not parsed.
    """
    lines = [line for line in data.split(b"\n") if _ITERATION_OR_START.search(line)]
    events = [event for event in parsed(lines) if not isinstance(event, Damaged)]
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


def _is_time(value: Any) -> bool:
    """Return whether `value` is a time in unix seconds that has a date."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _END_OF_TIME


def _is_sound(record: Event | SamplePreview | Fix, kind: str) -> bool:
    for name, types, member_types in _field_types(kind):
        value = getattr(record, name)
        if not isinstance(value, types):
            return False
        if isinstance(value, float | str):  # most are
            continue
        members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        if not all(_is_member(member, member_types or types) for member in members):
            return False
    return True


def _is_member(value: Any, types: tuple[type, ...]) -> bool:
    if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        return False
    if isinstance(value, SamplePreview | Fix):
        return _is_sound(value, "fix" if isinstance(value, Fix) else "preview")
    return isinstance(value, types)


@functools.cache
def _field_types(kind: str) -> tuple[tuple[str, tuple[type, ...], tuple[type, ...]], ...]:
    """Return the name and types of each field, and the types of its members, empty if it has none."""
    record = _MEMBERS.get(kind) or EVENT_TYPES[kind]
    found = []
    for field in fields(record):
        if field.type == "Any":
            continue
        annotation, _, members = str(field.type).rstrip("]").partition("[")
        member_types = _TYPES.get(members.removeprefix("str, "), (str, *_MEMBERS.values())) if members else ()
        found.append((field.name, _TYPES.get(annotation, (str,)), member_types))
    return tuple(found)
