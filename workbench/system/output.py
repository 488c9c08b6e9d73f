"""Output of the program: data on stdout; all else on stderr, one line a problem."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from pathlib import Path

from workbench.text import visible

PROGRAM = "ppo-workbench"


def data(text: str) -> None:
    """Write `text`, one line or several, to stdout at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def note(message: str) -> None:
    """Print a message on stderr, prefixed with the program's name."""
    _line(f"{PROGRAM}: {visible(message)}")


def warning(message: str) -> None:
    """Warn on stderr."""
    note(f"warning: {message}")


def error(message: str) -> None:
    """Report an error on stderr; each line of `message` is one problem and gets a line of its own."""
    for problem in message.splitlines() or [""]:
        note(f"error: {problem}")


def crash(exception: BaseException, folder: Path | None = None) -> None:
    """Report a bug in one line, with the traceback in `folder`/crash.log, or else on stderr."""
    details = "".join(traceback.format_exception(exception))
    what = f"{type(exception).__name__}: {exception}".splitlines()[0]
    if folder is not None:
        from trainer.files import PRIVATE, write_whole  # here, because `--version` loads nothing of the trainer

        with contextlib.suppress(OSError):
            path = folder / "crash.log"
            write_whole(path, details, mode=PRIVATE)
            error(f"unexpected {what}: this is a bug, its traceback is in {path}")
            return
    _line(visible(details.rstrip(), keep_newlines=True))
    error(f"unexpected {what}: this is a bug, please report the traceback above")


def discard_stdout() -> None:
    """Discard what is still buffered for stdout, whose reader has gone: Python's flush at exit would fail."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor has nothing to lose
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def make_streams_safe() -> None:
    """Make stdout and stderr write characters that their encoding lacks as escapes instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _line(text: str) -> None:
    with contextlib.suppress(OSError):  # the reader has gone
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
