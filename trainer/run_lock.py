"""The lock of a run's folder: at most one process trains a run, and others can see whether one does."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from trainer.errors import StorageError, UsageError

_FILE = "lock"


@contextlib.contextmanager
def hold_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of the run in `folder`. It ends with the process, however that ends.

    Raises UsageError when another one holds it, StorageError when the folder takes no lock.
    """
    try:
        file = os.open(folder / _FILE, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise _error(folder, error) from None
    try:
        try:
            _lock_exclusively(file, folder.name)
            os.ftruncate(file, 0)
            os.write(file, str(os.getpid()).encode())
        except OSError as error:
            raise _error(folder, error) from None
        yield
    finally:
        os.close(file)


def lock_is_held(folder: Path) -> bool:
    """Whether some process, maybe this one, holds the lock of the run in `folder`."""
    try:
        file = os.open(folder / _FILE, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _try_lock(file, fcntl.LOCK_SH)
    except OSError:
        return False
    finally:
        os.close(file)


def _lock_exclusively(file: int, name: str) -> None:
    while not _try_lock(file, fcntl.LOCK_EX):
        # `lock_is_held` shares it for an instant and must not be taken for a trainer, who does not share.
        if not _try_lock(file, fcntl.LOCK_SH):
            pid = os.pread(file, 20, 0).decode(errors="replace") or "unknown"
            raise UsageError(f"run '{name}' is being trained by process {pid}: stop it first, or wait")


def _try_lock(file: int, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _error(folder: Path, error: OSError) -> StorageError:
    return StorageError(
        f"cannot lock run '{folder}': {error.strerror}; choose a local, writable folder with --set run.dir=FOLDER"
    )
