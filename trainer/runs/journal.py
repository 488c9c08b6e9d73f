"""Events of a run on disk: one JSON object per line, append-only, readable while it is written.

The first line is `{"journal": 1, "created": "2025-01-31T12:00:00.000000+00:00"}`; each further line is an event with
its `time` in unix seconds.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import stat
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from trainer.errors import StorageError, storage_error, writing
from trainer.events import (
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
from trainer.plurals import counted
from trainer.runs.journal_lines import (
    TimedEvent,
    event_in,
    iterations_and_starts,
    lines_before,
    newest_iterations,
    parsed,
    values_in,
)

_DURABLE = (CheckpointSaved, RunEnded)
_STEPS = (Iteration, RewardModelStep)
_EVALUATIONS = (Evaluation, RewardModelEvaluation)
_REDONE_BY_RESUMED_RUN = (*_STEPS, *_EVALUATIONS, SamplesWritten, CheckpointSaved, Alarm, Decision, RolledBack)
_END_BYTES = 16 * 1024
_END_STEPS = 5  # those that `listing` averages over


class Journal:
    """Sink that keeps every event except transient ones. Nothing is buffered: `kill -9` loses no event.

    Opening an existing journal continues it; a newline completes a last line that was cut. On a write error, `emit`
    raises StorageError and the journal keeps what is missing. The next `emit` or `close` writes that first, so a disk
    that was full for a while leaves no gap and no torn line.

    shared: other users of the machine may read it; None keeps the permissions of an existing journal.
    """

    def __init__(self, path: Path, *, shared: bool | None = False) -> None:
        self.path = path
        self._shared = shared
        self._unwritten = b""
        with self._writing():
            self._file = self._opened()
        try:
            with self._writing():
                self._unwritten = self._opening()
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

    def _opened(self) -> FileIO:
        """Open the file for appending, with the permissions of now: those of the run may have changed since."""
        descriptor = open_file(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, SHARED if self._shared else PRIVATE)
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        wanted = PRIVATE if not self._shared else 0o644 if mode == PRIVATE else mode
        if mode != wanted and self._shared is not None:
            with contextlib.suppress(PermissionError):  # another user's file, or a file system without permissions
                os.fchmod(descriptor, wanted)
        return FileIO(descriptor, "ab+")

    def _opening(self) -> bytes:
        """Return what precedes the first event: a new journal's header, or the newline that a cut line lacks."""
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(0)
        if b"\n" not in self._file.readline():
            self._file.truncate(0)  # new, or cut within the header: nothing to keep
            created = datetime.now(UTC).isoformat(timespec="microseconds")
            return _line({"journal": SCHEMA_VERSION, "created": created})
        self._file.seek(size - 1)
        return b"" if self._file.read(1) == b"\n" else b"\n"

    def _write(self, durable: bool = False) -> None:
        with self._writing():
            while self._unwritten:
                self._unwritten = self._unwritten[self._file.write(self._unwritten) :]
            if durable:
                os.fsync(self._file.fileno())

    def _writing(self) -> AbstractContextManager[None]:
        return writing(f"journal '{self.path}'", ", then continue with --resume")


class JournalReader:
    """Reader that follows a journal: each `poll` reads only what was appended since the last one.

    iterations: begin this many Iterations before the end instead of at the first line, but at most 16 MiB before the
    end. `opening` is then the journal's first event, and `earlier` returns what lies between; if there is nothing
    between, `opening` is None. restarts: how often the file was found replaced or cut. The reader then begins again,
    and `poll` returns the new file's events as the first call did. unfinished: whether the last line still lacks its
    newline.
    """

    def __init__(self, path: Path, iterations: int | None = None) -> None:
        self.path = path
        self.restarts = 0
        self.unfinished = False
        self._iterations = iterations
        self._start_again()

    def _start_again(self) -> None:
        self.opening: TimedEvent | None = None
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
        with _reading(self.path), contextlib.suppress(FileNotFoundError), open_regular(self.path) as file:
            head = file.readline(_END_BYTES)  # its time distinguishes one journal from another
            if self._offset and (head != self._head or file.seek(0, os.SEEK_END) < self._offset):
                self.restarts += 1
                self._start_again()
            self._head = head
            if not self._offset and self._iterations is not None:
                self._skip(file, self._iterations)
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
        with _reading(self.path), open_regular(self.path) as file:
            if file.readline(_END_BYTES) != self._head:
                return None  # replaced: the next poll begins again
            self._begin, data = lines_before(file, end, size)
        events, ignored = iterations_and_starts(data)
        self._ignored += ignored
        return events

    @property
    def problems(self) -> list[str]:
        """Problems found so far, one line each; lines of the journal are counted from 1."""
        unknown = [
            f"{counted(count, 'event')} of unknown kind '{kind}' ignored: a newer ppo-workbench reads them"
            for kind, count in self._unknown.items()
        ]
        earlier = [f"{counted(self._ignored, 'earlier line')} ignored: cut or damaged"] if self._ignored else []
        return self._damages + unknown + earlier

    def _skip(self, file: BinaryIO, iterations: int) -> None:
        """Read the header and the first event, then continue with the newest `iterations`, unless that is all."""
        first = file.readline()
        begin = newest_iterations(file, iterations)
        if begin > len(self._head) + len(first):
            self._event(self._head)
            self.opening = self._event(first)
            self._begin = self._offset = begin
            self._lines = 0

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
            if (event := event_in(values)) is None:
                self._unknown[str(values.get("event"))] += 1
                return None
        except ValueError as error:
            since = " of the newest" if self._begin else ""
            self._damages.append(f"line {self._lines}{since} ignored: {error}")
            return None
        return values["time"], event


class JournalView(NamedTuple):
    """Events of a journal that count: events[i] happened at times[i], unix seconds; problems are lines for a user."""

    events: list[Event]
    times: list[float]
    problems: list[str]


def read_journal(path: Path) -> JournalView:
    """Return the events of the journal at `path`, without those that a resumed run repeated.

    Damage does not raise: lines that cannot be read are ignored and reported in `problems`. Raises StorageError if
    there is no such file or it cannot be read.
    """
    reader = JournalReader(path)
    events = without_superseded(reader.poll())
    if not path.exists():
        raise StorageError(f"no journal '{path}': name the folder of a run that was started")
    problems = reader.problems + (["the last line is cut: its event is lost"] if reader.unfinished else [])
    return JournalView([event for _, event in events], [at for at, _ in events], problems)


class JournalEnds(NamedTuple):
    """First event of a journal and its newest: events[i] happened at times[i], unix seconds."""

    events: list[Event]
    times: list[float]
    damaged: int  # unreadable lines since the newest resumption or the oldest of the newest steps
    cut: bool  # whether the last line lacks its end: it is being written, or its event is lost


def read_journal_ends(path: Path) -> JournalEnds:
    """Return the first event of the journal at `path` and its newest, including its last five steps.

    Reads 16 KiB from either end, and more only if these contain fewer steps. Raises StorageError if the file cannot be
    read.
    """
    window, events = _END_BYTES, list[TimedEvent]()
    with _reading(path), open_regular(path) as file:
        first = file.read(_END_BYTES).split(b"\n")[:2]
        size = file.seek(0, os.SEEK_END)
        while True:
            start = size - window if size - window > _END_BYTES else 0
            file.seek(start)
            *lines, rest = file.read(size - start).split(b"\n")
            if start:
                lines[:1] = first  # in place of the line that the window cuts
            found = parsed(lines)
            events = without_superseded([event for event in found if event is not None])
            if not start or sum(isinstance(event, _STEPS) for _, event in events) >= _END_STEPS:
                break
            window *= 4
    damaged = _damaged_since([event for _, event in events if isinstance(event, _STEPS)][-_END_STEPS:], found)
    return JournalEnds([event for _, event in events], [at for at, _ in events], damaged, bool(rest))


def _damaged_since(steps: Sequence[Event], found: Sequence[TimedEvent | None]) -> int:
    """Count the damaged lines of `found` after the first of `steps`, or all if there are no steps.

    A resumed run restarts the count.
    """
    count = 0
    for line in found:
        if line is None:
            count += 1
        elif isinstance(line[1], RunStarted) or (steps and line[1] is steps[0]):
            count = 0
    return count


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


def _reading(path: Path) -> AbstractContextManager[None]:
    return storage_error(f"cannot read journal '{path}'", "check that it is a file you may read")


def _line(values: dict[str, Any]) -> bytes:
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # A lone surrogate has no UTF-8; its backslash form is the JSON escape of the same character.
    return text.encode("utf-8", "backslashreplace") + b"\n"
