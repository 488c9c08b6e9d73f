"""What goes to stderr: one line a problem, and the record of a crash."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from pathlib import Path
from typing import TextIO

from workbench.text import visible

PROGRAM = "ppo-workbench"


def note(message: str) -> None:
    """Tell something on stderr, prefixed with the program's name."""
    _line(f"{PROGRAM}: {visible(message)}")


def warning(message: str) -> None:
    """Warn on stderr."""
    note(f"warning: {message}")


def error(message: str) -> None:
    """Report an error on stderr; each line of `message` is one problem and gets a line of its own."""
    for problem in message.splitlines() or [""]:
        note(f"error: {problem}")


def crash(exception: BaseException, folder: Path | None = None) -> None:
    """Report a bug of ours: a short message, the traceback into `folder`/crash.log, or on stderr without a folder."""
    details = "".join(traceback.format_exception(exception))
    what = f"{type(exception).__name__}: {exception}".splitlines()[0]
    if folder is not None:
        with contextlib.suppress(OSError):
            path = folder / "crash.log"
            path.write_text(details, encoding="utf-8", errors="backslashreplace")
            error(f"unexpected {what}: this is a bug, its traceback is in {path}")
            return
    _line(visible(details.rstrip(), keep_newlines=True))
    error(f"unexpected {what}: this is a bug, please report the traceback above")


def make_streams_safe() -> None:
    """Let stdout and stderr show characters that the terminal's encoding lacks as escapes instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def discard(stream: TextIO) -> None:
    """Send the rest of `stream` nowhere: its reader went away, and the flush at exit must not fail again."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: a stream in memory has no file number
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def _line(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody is left to read it
        print(text, file=sys.stderr, flush=True)
