"""A log file for what native code and libraries print, so that it never lands on the screen.

Each workbench has its own file, `workbench-PID.log`; old ones are removed, and a long one is cut.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_KEPT = 5  # log files of ended workbenches
_LONGEST = 4 * 1024 * 1024  # bytes of a file
_LEFT = 1024 * 1024  # bytes kept at the end of a file that is cut


def new_log(folder: Path) -> Path:
    """Return the log file of this process in `folder`, and remove all but the newest few of ended processes."""
    log = folder / f"workbench-{os.getpid()}.log"
    with suppress(OSError):
        ended = [path for path in folder.glob("workbench*.log") if not _is_written(path) or path == log]
        for path in sorted(ended, key=lambda path: path.lstat().st_mtime, reverse=True)[_KEPT:]:
            path.unlink()
    return log


def cut_log(path: Path) -> bool:
    """Cut a long log to its end, and return whether it was long. What is printed meanwhile may be lost."""
    with suppress(OSError):
        if path.stat().st_size > _LONGEST:
            with path.open("rb") as file:
                file.seek(-_LEFT, os.SEEK_END)
                end = file.read()
            with path.open("ab") as file:
                file.truncate(0)  # descriptors that append, such as native code's, continue from there
                file.write(end.partition(b"\n")[2])
            return True
    return False


def _is_written(log: Path) -> bool:
    """Return whether the process that a log is named after is running."""
    try:
        os.kill(int(log.stem.rpartition("-")[2]), 0)
    except PermissionError:  # another user's
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return True


@contextmanager
def native_output_to(path: Path) -> Iterator[None]:
    """Redirect file descriptors 1 and 2 to the end of `path` within the block; the screen keeps the terminal.

    Textual writes to `sys.__stderr__` and asks `sys.__stdout__` for the terminal's size: both get their own
    descriptors. If the file cannot be opened, what is printed is dropped.
    """
    log = _open(path)
    kept = {number: os.dup(number) for number in (1, 2)}
    streams = sys.__stdout__, sys.__stderr__
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    screen_out, screen_err = (os.fdopen(kept[number], "w", encoding="utf-8", closefd=False) for number in (1, 2))
    sys.__stdout__, sys.__stderr__ = screen_out, screen_err  # type: ignore[misc]  # that is how Textual finds them
    try:
        yield
    finally:
        for stream in (screen_out, screen_err):
            with suppress(OSError):  # the terminal may be gone
                stream.flush()
        sys.__stdout__, sys.__stderr__ = streams  # type: ignore[misc]
        for number, descriptor in kept.items():
            os.dup2(descriptor, number)
            os.close(descriptor)


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)
