"""Lock of a run's folder: at most one process trains a run, and others can see whether one does."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from trainer.errors import StorageError, UsageError
from trainer.files import PRIVATE, lock, open_file

_FILE = "lock"


class Lock:
    """Lock of the run in `folder`, held by this process. It ends with the process.

    Raises UsageError if another process holds it, StorageError if the folder cannot be locked.
    """

    def __init__(self, folder: Path) -> None:
        self._file = _locked(folder)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._file)


def lock_is_held(folder: Path) -> bool | None:
    """Return whether some process, maybe this one, holds the lock of the run in `folder`.

    None if another user's lock may not be opened, so that the answer is unknown.
    """
    try:
        file = open_file(folder / _FILE)
    except PermissionError:
        return None
    except OSError:
        return False
    try:
        return not _try_lock(file, fcntl.LOCK_SH)
    except OSError:
        return False
    finally:
        os.close(file)


def _locked(folder: Path) -> int:
    """Open and lock the lock file in `folder`. Only its owner may open it, because whoever opens it could lock it."""
    try:
        file = open_file(folder / _FILE, os.O_RDWR | os.O_CREAT, PRIVATE)
    except OSError as error:
        raise _error(folder, error) from None
    try:
        while not _try_lock(file, fcntl.LOCK_EX):
            # `lock_is_held` takes a shared lock for an instant and must not pass for a trainer: that one is exclusive.
            if not _try_lock(file, fcntl.LOCK_SH):
                if not (pid := os.pread(file, 20, 0).decode(errors="replace")):  # not written yet
                    raise UsageError(f"run '{folder.name}' is in use by another process: try again")
                raise UsageError(f"run '{folder.name}' is being trained by process {pid}: stop it first, or wait")
        with contextlib.suppress(PermissionError):  # a file system without permissions
            os.fchmod(file, PRIVATE)
        os.ftruncate(file, 0)
        os.write(file, str(os.getpid()).encode())
    except OSError as error:
        os.close(file)
        raise _error(folder, error) from None
    except UsageError:
        os.close(file)
        raise
    return file


def _try_lock(file: int, how: int) -> bool:
    try:
        lock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _error(folder: Path, error: OSError) -> StorageError:
    if isinstance(error, PermissionError):
        way_out = "only the user who started a run can train it; copy its folder to train it as your own"
    else:
        way_out = "choose a local, writable folder with --set run.dir=FOLDER"
    return StorageError(f"cannot lock run '{folder}': {error.strerror}; {way_out}")
