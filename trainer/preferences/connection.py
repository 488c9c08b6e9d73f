"""File of a preference store: its schema, connections, transactions, and SQLite's errors as ours."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

from trainer.errors import BusyError, StorageError, UsageError, storage_error
from trainer.files import PRIVATE, has_locks, open_file

BUSY_SECONDS = 30.0  # how long to wait for another connection's write

SCHEMA = (
    """CREATE TABLE comparisons (
        id INTEGER PRIMARY KEY,
        key TEXT NOT NULL UNIQUE,   -- the same for these completions in any order
        prompt TEXT NOT NULL,       -- JSON
        completions TEXT NOT NULL   -- JSON, in the order first seen
    )""",
    """CREATE TABLE guidelines (
        hash TEXT PRIMARY KEY,
        text TEXT NOT NULL
    )""",
    """CREATE TABLE sessions (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        time REAL NOT NULL,         -- when it was begun, seconds since 1970
        labeller TEXT NOT NULL,
        plan TEXT NOT NULL,         -- JSON
        guidelines TEXT REFERENCES guidelines (hash)
    )""",
    # The item that a label is made on; an undo has that of the label that it undoes.
    """CREATE TABLE events (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        time REAL NOT NULL,         -- when it was written, seconds since 1970
        kind TEXT NOT NULL CHECK (kind IN ('label', 'undo')),
        comparison INTEGER NOT NULL REFERENCES comparisons (id),
        labeller TEXT NOT NULL,
        source TEXT NOT NULL,
        choice TEXT CHECK (choice IN ('a', 'b', 'tie', 'both_bad', 'skip', 'ranking')),  -- of a label, for counting
        payload TEXT NOT NULL,      -- JSON: judgement, origins, columns; places are the comparison's
        undoes INTEGER UNIQUE REFERENCES events (id),
        session INTEGER REFERENCES sessions (id),
        position INTEGER CHECK ((position IS NULL) = (session IS NULL)),
        CHECK ((kind = 'undo') = (undoes IS NOT NULL)),
        CHECK ((kind = 'label') = (choice IS NOT NULL))
    )""",
    """CREATE TABLE session_items (
        id INTEGER PRIMARY KEY,
        session INTEGER NOT NULL REFERENCES sessions (id),
        position INTEGER NOT NULL CHECK (position >= 0),
        comparison INTEGER NOT NULL REFERENCES comparisons (id),
        queue TEXT NOT NULL,
        payload TEXT NOT NULL,      -- JSON, like a skip's: the order shown, origins and columns
        repeats INTEGER REFERENCES events (id),  -- the label that is asked for again
        UNIQUE (session, position)
    )""",
    "CREATE INDEX events_of_comparison ON events (comparison)",
    "CREATE INDEX events_of_session ON events (session, position) WHERE session IS NOT NULL",
    *(
        f"CREATE TRIGGER {table}_no_{verb} BEFORE {verb} ON {table} BEGIN "
        f"SELECT RAISE(ABORT, '{table} are append-only'); END"
        for table in ("comparisons", "events", "guidelines", "sessions", "session_items")
        for verb in ("update", "delete")
    ),
)
"""Schema of a store: a log of events on comparisons, which the database itself keeps append-only, and sessions."""

VERSION = 1
_READ_ONLY = "cannot write {path}: it or its folder is read-only; make both writable, or name another file"
_REASONS = {  # by SQLite's code
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_PERM: _READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: "cannot open {path}: its folder is missing, or the file is another user's, or you may not "
    "write there; make the folder writable, or name another file",
    sqlite3.SQLITE_FULL: "cannot write {path}: the disk is full; free space, then try again",
    sqlite3.SQLITE_NOTADB: "{path} is not a preference store: name another file",
    sqlite3.SQLITE_CORRUPT: "{path} is damaged ({error}): restore a copy of it, or save what `sqlite3 FILE .recover` "
    "reads",
}
_APPLICATION_ID = int.from_bytes(b"PPOw")  # in the file's header, so that `file` and we recognise it


def connect(path: Path, *, create: bool) -> sqlite3.Connection:
    """Open the store `path`; read-only where nothing can be written. create: make one if there is none.

    With `create`, the store must be writable. Raises UsageError if there is no such file and none is to be created,
    StorageError if it cannot be used, is another program's file or of a newer version.
    """
    mode = None
    with (
        storage_error(f"cannot open '{path}'", "name a file that you may read"),
        contextlib.suppress(FileNotFoundError),
    ):
        mode = path.stat().st_mode
    if mode is None and not create:
        raise UsageError(
            f"there is no preference store '{path}': import or label some preferences first, or name another file"
        )
    if mode is not None and not stat.S_ISREG(mode):  # SQLite would wait for a pipe
        raise StorageError(f"cannot open '{path}': it is not a file; name the store's file")
    real = path.resolve()  # SQLite keeps its other files beside this one
    writable = os.access(real, os.W_OK) and os.access(real.parent, os.W_OK)
    how = "mode=rw"
    if mode is None:
        with contextlib.suppress(OSError):  # SQLite reports the reason, and gives its other files the same mode
            os.close(open_file(real, os.O_RDWR | os.O_CREAT, PRIVATE))
    elif not writable and not real.with_name(f"{real.name}-wal").exists():
        # Readers of a write-ahead log write files beside it. They cannot in a read-only folder; where only the file is
        # read-only, the files that they leave would keep others from writing. A file without a log is complete.
        how = "mode=ro&immutable=1"
    patience = BUSY_SECONDS if has_locks(real.parent) else 0.0  # SQLite takes some systems without locks for busy ones
    with storage_errors(path):
        connection = sqlite3.connect(f"{real.as_uri()}?{how}", timeout=patience, isolation_level=None, uri=True)
        try:
            connection.execute("SELECT name FROM sqlite_master").fetchone()  # opens the file
            connection.execute("PRAGMA foreign_keys = ON")
            # With a write-ahead log, NORMAL syncs only now and then, and a power cut could lose the last labels.
            # fullfsync makes macOS empty the drive's cache too, and does nothing elsewhere.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA fullfsync = ON")
            if not _has_schema(connection, path) or create:
                _prepare(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


def _has_schema(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether the file is a store; False for an empty one. Raises StorageError."""
    version, owner, tables = connection.execute(
        """SELECT (SELECT user_version FROM pragma_user_version),
                  (SELECT application_id FROM pragma_application_id),
                  (SELECT count(*) FROM sqlite_master)"""
    ).fetchone()
    if owner != _APPLICATION_ID and (owner, version, tables) != (0, 0, 0):
        raise StorageError(f"'{path}' is a database of another program: name another file")
    if version > VERSION:
        raise StorageError(
            f"'{path}' was written by a newer version (store version {version}, known up to {VERSION}): "
            "update ppo-workbench"
        )
    return bool(version)


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make an empty file a store, check that it can be written, and switch it to a write-ahead log.

    A crash leaves an empty file empty.
    """
    connection.execute("BEGIN IMMEDIATE")  # succeeds even on a read-only file, hence the write below
    try:
        is_new = not _has_schema(connection, path)  # another process may have made the store by now
        for statement in SCHEMA if is_new else ():
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        if is_new:
            connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        try:
            connection.execute("PRAGMA journal_mode = WAL")  # readers and a writer do not wait for each other
        except sqlite3.OperationalError as error:
            # SQLite waits for no lock here. Another process is opening the new file too; it or a later one does this.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn SQLite errors into StorageErrors that name `path` and the way out; a ProgrammingError passes through."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter if the message quotes a damaged schema
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF  # a UnicodeDecodeError has no code
        is_busy = code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        may_lack_locks = is_busy or code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PROTOCOL)
        if may_lack_locks and not has_locks(path.resolve().parent):
            raise StorageError(
                f"cannot use '{path}': its file system has no file locks; keep the store in a local folder, or mount "
                "the file system with locks (Lustre: -o flock)"
            ) from None
        if is_busy:
            raise BusyError(
                f"'{path}' has been locked by another program for {BUSY_SECONDS:.0f} s: end what is writing to it, or "
                "try again later"
            ) from None
        reason = _REASONS.get(code, "cannot use {path}: {error}; check the file and its disk, or restore a copy")
        raise StorageError(reason.format(path=f"'{path}'", error=error)) from None
