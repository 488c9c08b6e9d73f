"""What native code and libraries print goes to a log file, never over the screen."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def native_output_to(path: Path) -> Iterator[None]:
    """Within the block, file descriptors 1 and 2 write to the end of `path`; the screen keeps the terminal.

    Textual writes to `sys.__stderr__` and asks `sys.__stdout__` for the terminal's size: both get descriptors of their
    own. Where the file cannot be opened, what is printed is dropped.
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
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)
