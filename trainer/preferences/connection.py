"""Connections to a preference store's file: transactions, and SQLite's errors as ours."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

from trainer.errors import BusyError, StorageError, UsageError
from trainer.files import PRIVATE, has_locks, open_file

BUSY_SECONDS = 30.0  # how long to wait for another connection's write
_WRITE_AHEAD_LOG, _SHARED_MEMORY = "-wal", "-shm"  # what SQLite adds to a file's name for its log, and its index
_LOCKS = Path("/proc/locks")  # of Linux: "1: POSIX  ADVISORY  WRITE 4711 fd:01:1835 120 120" and so on


def connect(path: Path, *, create: bool) -> sqlite3.Connection:
    """Open `path` and check that its schema can be read; read-only where nothing can be written.

    Raises UsageError if there is no such file and none is to be created, StorageError if it cannot be opened.
    """
    is_there = _look(path, create)
    real = path.resolve()  # SQLite keeps its other files beside this one
    writable = os.access(real, os.W_OK) and os.access(real.parent, os.W_OK)
    with storage_errors(path):
        if is_there and not writable and not real.with_name(real.name + _WRITE_AHEAD_LOG).exists():
            # Readers of a write-ahead log write files beside it. They cannot in a read-only folder; where only the file
            # is read-only, the files that they leave would keep others from writing. A file without a log is complete.
            return _connect(real, "mode=ro&immutable=1")
        if not is_there:
            with contextlib.suppress(OSError):  # SQLite reports the reason
                create_private(real)
        return _connect(real, "mode=rw")


def create_private(path: Path) -> None:
    """Create an empty file that only its owner may read, unless the file exists. Raises OSError.

    SQLite gives the files that it keeps beside it the same permissions.
    """
    os.close(open_file(path, os.O_RDWR | os.O_CREAT, PRIVATE))


def make_writable(connection: sqlite3.Connection) -> None:
    """Check that `connection` can write, and switch it to a write-ahead log.

    Raises sqlite3.OperationalError if it cannot.
    """
    connection.execute("BEGIN IMMEDIATE")  # succeeds even on a read-only file, hence the write below
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute(f"PRAGMA user_version = {version}")
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
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the block in a transaction that holds the write lock from its beginning; on disk when the block ends."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn SQLite errors into StorageErrors that name `path` and the way out; a ProgrammingError passes through."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter if the message quotes a damaged schema
        raise _storage_error(path, error) from None


def _look(path: Path, create: bool) -> bool:
    """Return whether the file exists; raise if it is not a file, or is missing and none is to be created."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if not create:
            raise UsageError(
                f"there is no preference store '{path}': import or label some preferences first, or name another file"
            ) from None
        return False
    except OSError as error:
        raise StorageError(f"cannot open '{path}': {error.strerror}; name a file that you may read") from None
    if not stat.S_ISREG(mode):  # SQLite would wait for a pipe
        raise StorageError(f"cannot open '{path}': it is not a file; name the store's file")
    return True


def _connect(path: Path, how: str) -> sqlite3.Connection:
    patience = BUSY_SECONDS if has_locks(path.parent) else 0.0  # SQLite takes some systems without locks for busy ones
    connection = sqlite3.connect(f"{path.as_uri()}?{how}", timeout=patience, isolation_level=None, uri=True)
    try:
        connection.execute("SELECT name FROM sqlite_master").fetchone()  # opens the file
        connection.execute("PRAGMA foreign_keys = ON")
        # With a write-ahead log, NORMAL syncs only now and then, and a power cut could lose the last labels. fullfsync
        # makes macOS empty the drive's cache too, and does nothing elsewhere.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _storage_error(path: Path, error: Exception) -> StorageError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF  # a UnicodeDecodeError has no code
    is_busy = code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    if (is_busy or code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PROTOCOL)) and not has_locks(path.resolve().parent):
        return StorageError(
            f"cannot use '{path}': its file system has no file locks; keep the store in a local folder, or mount the "
            "file system with locks (Lustre: -o flock)"
        )
    if is_busy:
        return BusyError(
            f"'{path}' has been locked by {_holder(path)} for {BUSY_SECONDS:.0f} s: end what is writing to it, or try "
            "again later"
        )
    return StorageError(_message(path, error, code))


def _holder(path: Path) -> str:
    """Return which process holds a lock to write to the store, as far as the system says."""
    try:
        about = [path.with_name(path.name + end).stat() for end in ("", _SHARED_MEMORY)]
        files = {f"{os.major(one.st_dev):02x}:{os.minor(one.st_dev):02x}:{one.st_ino}" for one in about}
        locks = [line.split() for line in _LOCKS.read_text().splitlines()]
    except OSError:
        return "another program"
    holders = sorted({pid for _, _, _, how, pid, file, *_ in locks if how == "WRITE" and file in files and pid > "0"})
    return f"process {', '.join(holders)}" if holders else "another program"


def _message(path: Path, error: Exception, code: int) -> str:
    match code:
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return f"cannot write '{path}': it or its folder is read-only; make both writable, or name another file"
        case sqlite3.SQLITE_CANTOPEN:
            return (
                f"cannot open '{path}': its folder is missing, or the file is another user's, or you may not write "
                "there; make the folder writable, or name another file"
            )
        case sqlite3.SQLITE_FULL:
            return f"cannot write '{path}': the disk is full; free space, then try again"
        case sqlite3.SQLITE_NOTADB:
            return f"'{path}' is not a preference store: name another file"
        case sqlite3.SQLITE_CORRUPT:
            return f"'{path}' is damaged ({error}): restore a copy of it, or save what `sqlite3 FILE .recover` reads"
        case _:
            return f"cannot use '{path}': {error}; check the file and its disk, or restore a copy"
