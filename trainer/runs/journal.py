"""Events of a run on disk: one JSON object per line, append-only, readable while it is written.

The first line is `{"journal": 1, "created": "2025-01-31T12:00:00.000000+00:00"}`; each further line is an event with
its `time` in unix seconds.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from functools import cache, partial
from io import FileIO
from pathlib import Path
from types import UnionType
from typing import Any, BinaryIO, NamedTuple, get_args, get_origin, get_type_hints

from pydantic_core import CoreSchema, SchemaValidator, from_json
from pydantic_core import core_schema as schemas

from trainer.errors import StorageError, counted, storage_error, writing
from trainer.events import (
    EVENT_TYPES,
    SCHEMA_VERSION,
    Alarm,
    CheckpointSaved,
    Decision,
    Evaluation,
    Event,
    Iteration,
    RewardModelEvaluation,
    RewardModelStep,
    RolledBack,
    RunEnded,
    RunStarted,
    SamplesWritten,
)
from trainer.files import PRIVATE, SHARED, open_file, open_regular

TimedEvent = tuple[float, Event]  # unix seconds

_DURABLE = (CheckpointSaved, RunEnded)
_STEPS = (Iteration, RewardModelStep)
_EVALUATIONS = (Evaluation, RewardModelEvaluation)
_REDONE_BY_RESUMED_RUN = (*_STEPS, *_EVALUATIONS, SamplesWritten, CheckpointSaved, Alarm, Decision, RolledBack)
_HEADER_BYTES = 16 * 1024
BLOCK_BYTES = 16 * 1024
"""Size of the last block of a journal, in which the newest iterations are searched for; earlier ones are larger."""
TAIL_BYTES = 16 * 1024 * 1024
"""Size of the end of a journal in which the newest iterations are searched for."""
_MOST_STEPS = 10_000  # that `read_journal` looks for
_END_OF_TIME = 253_402_300_800 - 2 * 86_400  # of dates, in any time zone
# Within a JSON string the quotes are escaped, so no text of a model matches.
_ITERATION = re.compile(rb'"event": ?"(?:iteration|reward_model_step|dpo_step)"')
_ITERATION_OR_START = re.compile(rb'"event": ?"(?:iteration|reward_model_step|dpo_step|run)"')


class Journal:
    """Sink that keeps every event except transient ones. Nothing is buffered: `kill -9` loses no event.

    Opening an existing journal continues it; a newline completes a last line that was cut. On a write error, `emit`
    raises StorageError and the journal keeps what is missing. The next `emit` or `close` writes that first, so a disk
    that was full for a while leaves no gap and no torn line.

    shared: other users of the machine may read it; None keeps the permissions of an existing journal.
    """

    def __init__(self, path: Path, *, shared: bool | None = False) -> None:
        self.path = path
        self._writing = partial(writing, f"journal '{path}'", ", then continue with --resume")
        with self._writing():
            descriptor = open_file(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, SHARED if shared else PRIVATE)
            self._file = FileIO(descriptor, "ab+")
        try:
            with self._writing():
                # The permissions of now: those of the run may have changed since.
                mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
                wanted = PRIVATE if not shared else 0o644 if mode == PRIVATE else mode
                if mode != wanted and shared is not None:
                    with contextlib.suppress(PermissionError):  # another user's file, or no permissions at all
                        os.fchmod(descriptor, wanted)
                size = self._file.seek(0, os.SEEK_END)
                self._file.seek(0)
                if b"\n" in self._file.readline():
                    self._file.seek(size - 1)
                    self._unwritten = b"" if self._file.read(1) == b"\n" else b"\n"
                else:
                    self._file.truncate(0)  # new, or cut within the header: nothing to keep
                    created = datetime.now(UTC).isoformat(timespec="microseconds")
                    self._unwritten = _line({"journal": SCHEMA_VERSION, "created": created})
            self._write()
        except BaseException:
            self._file.close()
            raise

    def emit(self, event: Event) -> None:
        """Append `event`. Raises StorageError if it cannot be written now."""
        if event.transient:
            return
        self._unwritten += _line({"time": round(time.time(), 3), **event.as_dict()})
        self._write(durable=isinstance(event, _DURABLE))

    def close(self) -> None:
        """Write what is missing and close the file. Raises StorageError if events are lost."""
        if self._file.closed:
            return
        try:
            self._write()
        finally:
            with self._writing():  # a network file system may report a failed write only now
                self._file.close()

    def _write(self, durable: bool = False) -> None:
        with self._writing():
            while self._unwritten:
                self._unwritten = self._unwritten[self._file.write(self._unwritten) :]
            if durable:
                os.fsync(self._file.fileno())


def _line(values: dict[str, Any]) -> bytes:
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # A lone surrogate has no UTF-8; its backslash form is the JSON escape of the same character.
    return text.encode("utf-8", "backslashreplace") + b"\n"


class JournalReader:
    """Reader that follows a journal: each `poll` reads only what was appended since the last one.

    iterations: begin this many Iterations before the end instead of at the first line, but at most 16 MiB before the
    end. `opening` is then the journal's first event, and `earlier` returns what lies between; if there is nothing
    between, `opening` is None. restarts: how often the file was found replaced or cut. The reader then begins again,
    and `poll` returns the new file's events as the first call did. unfinished: whether the last line still lacks its
    newline. damaged: unreadable lines since the newest resumption.
    """

    def __init__(self, path: Path, iterations: int | None = None) -> None:
        self.path = path
        self.restarts = 0
        self.unfinished = False
        self._iterations = iterations
        self._reading = partial(storage_error, f"cannot read journal '{path}'", "check that it is a file you may read")
        self._start_again()

    def _start_again(self) -> None:
        self.opening: TimedEvent | None = None
        self.damaged = 0
        self._head = b""
        self._begin = 0  # offset of the first line that was read; 0 if all before it were read too
        self._offset = 0
        self._lines = 0
        self._ignored = 0
        self._damages: list[str] = []
        self._unknown: Counter[str] = Counter()

    def poll(self) -> list[TimedEvent]:
        """Return the events since the last poll with their times in unix seconds; none while there is no file.

        A last line without its newline is still being written and waits for the next poll. Raises StorageError if the
        file is there but cannot be read.
        """
        data = b""
        with self._reading(), contextlib.suppress(FileNotFoundError), open_regular(self.path) as file:
            head = file.readline(_HEADER_BYTES)  # its time distinguishes one journal from another
            if self._offset and (head != self._head or file.seek(0, os.SEEK_END) < self._offset):
                self.restarts += 1
                self._start_again()
            self._head = head
            if not self._offset and self._iterations is not None:
                file.seek(len(head))
                first = file.readline()
                begin = _newest_iterations(file, self._iterations)
                if begin > len(head) + len(first):
                    self._event(head)
                    self.opening = self._event(first)
                    self._begin = self._offset = begin
                    self._lines = self.damaged = 0
            file.seek(self._offset)
            data = file.read()
        *lines, rest = data.split(b"\n")
        self._offset += len(data) - len(rest)
        self.unfinished = bool(rest)
        return [event for line in lines if (event := self._event(line)) is not None]

    def earlier(self, size: int) -> list[TimedEvent] | None:
        """Return Iterations and RunStarteds from about `size` bytes before those read so far; None if all were read.

        Other kinds are skipped. Raises StorageError if the file cannot be read; the rest is then given up.
        """
        if not self._begin:
            return None
        end, self._begin = self._begin, 0
        with self._reading(), open_regular(self.path) as file:
            if file.readline(_HEADER_BYTES) != self._head:
                return None  # replaced: the next poll begins again
            self._begin, data = _lines_before(file, end, size)
        events = []
        for line in filter(_ITERATION_OR_START.search, data.split(b"\n")):
            try:
                events.append(_timed(values_in(line)))
            except ValueError:
                self._ignored += 1
        return [event for event in events if event is not None]

    @property
    def problems(self) -> list[str]:
        """Problems found so far, one line each; lines of the journal are counted from 1."""
        unknown = [
            f"{counted(count, 'event')} of unknown kind '{kind}' ignored: a newer ppo-workbench reads them"
            for kind, count in self._unknown.items()
        ]
        earlier = [f"{counted(self._ignored, 'earlier line')} ignored: cut or damaged"] if self._ignored else []
        return self._damages + unknown + earlier

    def _event(self, line: bytes) -> TimedEvent | None:
        self._lines += 1
        try:
            values = values_in(line)
            if "journal" in values:
                if (version := values["journal"]) != SCHEMA_VERSION:
                    self._damages.append(
                        f"journal of version {version}, and this ppo-workbench reads version {SCHEMA_VERSION}: "
                        "what it does not know is ignored; upgrade to see it"
                    )
                return None
            found = _timed(values)
        except ValueError as error:
            self.damaged += 1
            since = " of the newest" if self._begin else ""
            self._damages.append(f"line {self._lines}{since} ignored: {error}")
            return None
        if found is None:
            self._unknown[str(values.get("event"))] += 1
        elif isinstance(found[1], RunStarted):
            self.damaged = 0
        return found


def _newest_iterations(file: BinaryIO, count: int) -> int:
    """Return the offset of the line in `file` that begins its newest `count` Iterations; 0 if it has fewer.

    If those lie further back than TAIL_BYTES, return the offset of a line about there.
    """
    begin = end = file.seek(0, os.SEEK_END)
    size = BLOCK_BYTES
    while begin and end - begin < TAIL_BYTES:
        begin, data = _lines_before(file, begin, size)
        found = [match.start() for match in _ITERATION.finditer(data)]
        if len(found) >= count:
            return begin + data.rfind(b"\n", 0, found[-count]) + 1
        count -= len(found)
        size = min(2 * size, TAIL_BYTES // 32)
    return begin


def _lines_before(file: BinaryIO, end: int, size: int) -> tuple[int, bytes]:
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


class JournalView(NamedTuple):
    """Events of a journal that count: events[i] happened at times[i], unix seconds; problems are lines for a user."""

    events: list[Event]
    times: list[float]
    problems: list[str]
    damaged: int  # unreadable lines since the newest resumption or the oldest step that was read
    cut: bool  # whether the last line lacks its end: it is being written, or its event is lost


def read_journal(path: Path, steps: int | None = None) -> JournalView:
    """Return the events of the journal at `path`, without those that a resumed run repeated.

    steps: read only the first event and the newest ones, with this many steps among them if there are as many. Damage
    does not raise: lines that cannot be read are ignored and reported in `problems`. Raises StorageError if there is no
    such file or it cannot be read.
    """
    while True:
        reader = JournalReader(path, steps)
        events = without_superseded(reader.poll())
        found = sum(isinstance(event, _STEPS) for _, event in events)
        if steps is None or reader.opening is None or not found < steps < _MOST_STEPS:
            break
        steps *= 4
    if not path.exists():
        raise StorageError(f"no journal '{path}': name the folder of a run that was started")
    if reader.opening is not None:
        events.insert(0, reader.opening)
    problems = reader.problems + (["the last line is cut: its event is lost"] if reader.unfinished else [])
    times = [at for at, _ in events]
    return JournalView([event for _, event in events], times, problems, reader.damaged, reader.unfinished)


def without_superseded(events: Sequence[TimedEvent]) -> list[TimedEvent]:
    """Return `events` without the iterations that a resumed run repeated, and without what came of them.

    A RunStarted with `resumed_at` = k supersedes the events before it that belong to iterations above k.
    """
    kept: list[TimedEvent] = []
    last = math.inf
    for at, event in reversed(events):
        if isinstance(event, _REDONE_BY_RESUMED_RUN) and event.iteration > last:
            continue
        if isinstance(event, RunStarted) and isinstance(event.resumed_at, int):
            last = min(last, event.resumed_at)
        kept.append((at, event))
    return kept[::-1]


def values_in(line: bytes) -> dict[str, Any]:
    """Return the JSON object in `line`. Raises ValueError if there is none."""
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
    """Return the event that `as_dict` gave, or None for a kind that this version does not know.

    Unknown fields are dropped, absent numbers become NaN. Raises ValueError if fields of its kind are missing or of
    another type, as a newer version may write them.
    """
    kind = values.get("event")
    with contextlib.suppress(ValueError):
        if isinstance(kind, str):
            event: Event | None = _validator(kind).validate_python(values) if kind in EVENT_TYPES else None
            return event
    raise ValueError(f"not a complete event (kind {kind!r})")


def _timed(values: dict[str, Any]) -> TimedEvent | None:
    at = values.get("time")
    if not isinstance(at, int | float) or isinstance(at, bool) or not 0 <= at < _END_OF_TIME:
        raise ValueError(f"not a complete event (kind {values.get('event')!r})")
    event = event_in(values)
    return None if event is None else (at, event)


def _schema(hint: Any) -> CoreSchema:
    """Return pydantic's schema of what a journal may hold for a value of type `hint`.

    It is looser than the type in two ways: a number may be null or absent (NaN), and a text may be one that only a
    newer version knows, also where this one lists the possible texts.
    """
    match get_origin(hint), get_args(hint):
        case (origin, [item]) if origin is list:
            return schemas.list_schema(_schema(item), strict=True)
        case (origin, [key, item]) if origin is dict:
            return schemas.dict_schema(_schema(key), _schema(item), strict=True)
        case (origin, [item, _]) if origin is UnionType:
            return schemas.nullable_schema(_schema(item))
    if not isinstance(hint, type) or not is_dataclass(hint):
        return _SCHEMAS.get(hint) or schemas.str_schema(strict=True)
    hints, members = get_type_hints(hint), []
    for f in fields(hint):
        member = _schema(hints[f.name])
        if f.default_factory is not MISSING:
            member = schemas.with_default_schema(member, default_factory=f.default_factory)
        elif f.default is not MISSING:
            member = schemas.with_default_schema(member, default=f.default)
        members.append(schemas.dataclass_field(f.name, member, kw_only=True))
    extra: schemas.ExtraBehavior = "ignore" if issubclass(hint, Event) else "forbid"
    arguments = schemas.dataclass_args_schema(hint.__name__, members, extra_behavior=extra)
    return schemas.dataclass_schema(hint, arguments, [f.name for f in fields(hint)], slots=True, frozen=True)


@cache
def _validator(kind: str) -> SchemaValidator:
    return SchemaValidator(_schema(EVENT_TYPES[kind]))


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
