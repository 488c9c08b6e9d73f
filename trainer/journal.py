"""A run's events on disk: one JSON object a line, append-only, readable while it is written.

The first line is `{"journal": 1, "created": "2025-01-31T12:00:00.000000+00:00"}`; each further one is an
event with its `time` in unix seconds.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from trainer.errors import StorageError
from trainer.events import (
    SCHEMA_VERSION,
    CheckpointSaved,
    Evaluation,
    Event,
    Iteration,
    RunEnded,
    RunStarted,
    SamplesWritten,
    event_from_dict,
)

TimedEvent = tuple[float, Event]

_DURABLE = (CheckpointSaved, RunEnded)
_REDONE_BY_RESUMED_RUN = (Iteration, SamplesWritten, Evaluation, CheckpointSaved)
_END_BYTES = 16 * 1024


class Journal:
    """The sink that keeps every event but transient ones. Nothing is buffered: `kill -9` loses no event.

    Opening an existing journal continues it; a last line that was cut is sealed off by a newline. On a write
    error `emit` raises StorageError and the journal holds on to what is missing: the next `emit` or `close`
    writes that first, so a disk that was full for a while leaves no gap and no torn line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unwritten = b""
        try:
            self._file = path.open("ab+", buffering=0)
        except OSError as error:
            raise self._storage_error(error) from None
        try:
            self._unwritten = self._opening()
            self._write()
        except BaseException:
            self._file.close()
            raise

    def emit(self, event: Event) -> None:
        """Append `event`; StorageError when it cannot be written now."""
        if event.transient:
            return
        self._unwritten += _line({"time": round(time.time(), 3), **event.as_dict()})
        self._write(durable=isinstance(event, _DURABLE))

    def close(self) -> None:
        """Write what is missing and close the file; StorageError when events are lost."""
        if self._file.closed:
            return
        try:
            self._write()
        finally:
            self._file.close()

    def _opening(self) -> bytes:
        """What goes before the first event: a new journal's header, or the newline that a cut line lacks."""
        try:
            size = self._file.seek(0, os.SEEK_END)
            self._file.seek(0)
            if b"\n" not in self._file.readline():
                self._file.truncate(0)  # new, or cut within the header: nothing to keep
                created = datetime.now(UTC).isoformat(timespec="microseconds")
                return _line({"journal": SCHEMA_VERSION, "created": created})
            self._file.seek(size - 1)
            return b"" if self._file.read(1) == b"\n" else b"\n"
        except OSError as error:
            raise self._storage_error(error) from None

    def _write(self, durable: bool = False) -> None:
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[self._file.write(self._unwritten) :]
            if durable:
                os.fsync(self._file.fileno())
        except OSError as error:
            raise self._storage_error(error) from None

    def _storage_error(self, error: OSError) -> StorageError:
        return StorageError(
            f"cannot write journal '{self.path}': {error.strerror}; "
            "free space or mend the folder, then go on with --resume"
        )


class JournalReader:
    """Follows a journal: each `poll` reads only what was appended since the one before.

    restarts: how often the file was found replaced or cut; the reader then begins anew, and `poll` returns
    the new file's events from the first. unfinished: whether the last line still lacks its newline.
    """

    _head: bytes
    _offset: int
    _lines: int
    _damages: list[str]
    _unknown: Counter[str]

    def __init__(self, path: Path) -> None:
        self.path = path
        self.restarts = 0
        self.unfinished = False
        self._begin()

    def poll(self) -> list[TimedEvent]:
        """Events since the last poll with their times in unix seconds; none while there is no file.

        A last line without its newline is still being written and waits for the next poll. StorageError when
        the file is there but cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                head = file.readline(_END_BYTES)  # the time in it tells one journal from another
                if self._offset and (head != self._head or file.seek(0, os.SEEK_END) < self._offset):
                    self.restarts += 1
                    self._begin()
                self._head = head
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unreadable(self.path, error) from None
        *lines, rest = data.split(b"\n")
        self._offset += len(data) - len(rest)
        self.unfinished = bool(rest)
        return [event for line in lines if (event := self._event(line)) is not None]

    @property
    def problems(self) -> list[str]:
        """What could not be read so far; lines are counted from 1."""
        unknown = [
            f"{count} event(s) of unknown kind '{kind}' left out: a newer ppo-workbench reads them"
            for kind, count in self._unknown.items()
        ]
        return self._damages + unknown

    def _begin(self) -> None:
        self._head = b""
        self._offset = 0
        self._lines = 0
        self._damages = []
        self._unknown = Counter()

    def _event(self, line: bytes) -> TimedEvent | None:
        self._lines += 1
        try:
            values = _values(line)
            if "journal" in values:
                self._check_version(values["journal"])
                return None
            if (event := _event(values)) is None:
                self._unknown[str(values.get("event"))] += 1
                return None
        except ValueError as error:
            self._damages.append(f"line {self._lines} left out: {error}")
            return None
        return values["time"], event

    def _check_version(self, version: Any) -> None:
        if version != SCHEMA_VERSION:
            self._damages.append(
                f"journal of version {version}, and this ppo-workbench reads version {SCHEMA_VERSION}: "
                "what it does not know is left out; upgrade to see it"
            )


class JournalView(NamedTuple):
    """A journal as it counts: events[i] happened at times[i], unix seconds; problems are lines for a user."""

    events: list[Event]
    times: list[float]
    problems: list[str]


def read_journal(path: Path) -> JournalView:
    """The events of the journal at `path` without those that a resumed run did anew.

    Damage does not raise: lines that cannot be read are left out and told in `problems`. StorageError when
    there is no such file or it cannot be read.
    """
    reader = JournalReader(path)
    events = without_superseded(reader.poll())
    if not path.exists():
        raise StorageError(f"no journal '{path}': name the folder of a run that was started")
    problems = reader.problems + (["the last line is cut: its event is lost"] if reader.unfinished else [])
    return JournalView([event for _, event in events], [at for at, _ in events], problems)


def read_journal_ends(path: Path, iterations: int = 5) -> JournalView:
    """The first event of the journal at `path` and its newest, the last `iterations` Iterations among them.

    Reads 16 KiB from either end, and more only where these hold fewer. The one problem looked for is a journal
    without any event. StorageError when the file cannot be read.
    """
    window, events = _END_BYTES, list[TimedEvent]()
    try:
        with path.open("rb") as file:
            first = file.read(_END_BYTES).split(b"\n")[:2]
            size = file.seek(0, os.SEEK_END)
            while True:
                start = size - window if size - window > _END_BYTES else 0
                file.seek(start)
                lines = file.read(size - start).split(b"\n")[:-1]
                if start:
                    lines[:1] = first  # in place of the line that the window cuts
                events = without_superseded(_readable(lines))
                if not start or sum(isinstance(event, Iteration) for _, event in events) >= iterations:
                    break
                window *= 4
    except OSError as error:
        raise _unreadable(path, error) from None
    problems = [] if events else [f"journal '{path}' holds no event"]
    return JournalView([event for _, event in events], [at for at, _ in events], problems)


def without_superseded(events: Sequence[TimedEvent]) -> list[TimedEvent]:
    """`events` without the iterations, samples, evaluations and checkpoints that a resumed run did anew.

    A RunStarted with `resumed_at` = k supersedes those of iterations above k that stand before it.
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


def _unreadable(path: Path, error: OSError) -> StorageError:
    return StorageError(f"cannot read journal '{path}': {error.strerror}; check that it is a file you may read")


def _line(values: dict[str, Any]) -> bytes:
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # A lone surrogate has no UTF-8; its backslash form is the JSON escape of the same character.
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _values(line: bytes) -> dict[str, Any]:
    """The object in `line`. ValueError when there is none."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("it was cut or damaged") from None
    if not isinstance(values, dict):
        raise ValueError("it is not a JSON object")
    return values


def _event(values: dict[str, Any]) -> Event | None:
    """The event in `values`, None for an unknown kind. ValueError when fields of its kind are missing."""
    kind = values.get("event")
    numbers = isinstance(values.get("time"), int | float) and isinstance(values.get("iteration", 0), int)
    try:
        if isinstance(kind, str) and numbers:
            return event_from_dict(values)
    except (TypeError, KeyError, AttributeError):
        pass
    raise ValueError(f"it is not a whole event (kind {kind!r})")


def _readable(lines: Sequence[bytes]) -> list[TimedEvent]:
    events = []
    for line in lines:
        try:
            values = _values(line)
            event = None if "journal" in values else _event(values)
        except ValueError:
            continue
        if event is not None:
            events.append((values["time"], event))
    return events
