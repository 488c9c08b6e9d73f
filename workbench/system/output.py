"""Output of the program: data on stdout; all else on stderr, one line per problem.

While the screen is open, what native code and libraries print goes to a log file instead. Each workbench has its own,
`workbench-PID.log`; the oldest are removed, and a long one is cut.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.text import visible

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PROGRAM = "ppo-workbench"

_KEPT = 9  # log files of other workbenches
_LONGEST = 4 * 1024 * 1024  # bytes of a file
_LEFT = 1024 * 1024  # bytes kept at the end of a file that is cut


def data(text: str) -> None:
    """Write `text`, one line or several, to stdout at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def note(message: str) -> None:
    """Print a message on stderr, prefixed with the program's name."""
    _line(f"{PROGRAM}: {visible(message, joined=True)}")


def warning(message: str) -> None:
    """Warn on stderr."""
    note(f"warning: {message}")


def error(message: str) -> None:
    """Report an error on stderr; each line of `message` is one problem and gets a line of its own."""
    for problem in message.splitlines() or [""]:
        note(f"error: {problem}")


def crash(bug: BaseException | str, folder: Path | None = None) -> None:
    """Report a bug, or its traceback, in one line; the traceback goes to `folder`/crash.log, or else to stderr."""

    def show(details: str) -> None:
        _line(visible(details.rstrip(), keep_newlines=True))

    error(bug_line(bug, folder, show, "please report the traceback above"))


def bug_line(bug: BaseException | str, folder: Path | None, show: Callable[[str], object], otherwise: str) -> str:
    """Return a bug in one line. Its traceback goes to `folder`/crash.log, which the line names.

    show and otherwise: where the traceback goes without such a file, and the end of the line then.
    """
    if isinstance(bug, str):
        what, details = f"unexpected {bug.rstrip().splitlines()[-1]}", bug
    else:
        what = f"unexpected {type(bug).__name__}: {bug}".splitlines()[0]
        details = "".join(traceback.format_exception(bug))
    if folder is not None:
        from trainer.files import PRIVATE, write_whole  # here, because `--version` loads nothing of the trainer

        with suppress(OSError):
            write_whole(folder / "crash.log", details, mode=PRIVATE)
            return f"{what}: this is a bug, its traceback is in {folder / 'crash.log'}"
    show(details)
    return f"{what}: this is a bug, {otherwise}"


def discard_stdout() -> None:
    """Discard what is still buffered for stdout, whose reader has gone: Python's flush at exit would fail."""
    with suppress(OSError, ValueError):  # a stream without a descriptor has nothing to lose
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def new_log(folder: Path) -> Path:
    """Return the log file of this process in `folder`, and remove all but the newest few of others."""
    with suppress(OSError):
        logs = sorted(folder.glob("workbench-*.log"), key=lambda path: path.lstat().st_mtime, reverse=True)
        for path in logs[_KEPT:]:
            path.unlink()
    return folder / f"workbench-{os.getpid()}.log"


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


class _Terminal(io.FileIO):
    """A terminal that swallows what is drawn after it has gone, where an error would end Textual's writing thread.

    Without that thread the screen could not close: once its queue is full, the application waits for room for ever.
    The first such write stands for SIGHUP, which may not come: `make` keeps it from its children and waits for them.
    """

    gone = False

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            if not self.gone:
                self.gone = True
                os.kill(os.getpid(), signal.SIGHUP)
            return memoryview(data).nbytes


@contextmanager
def native_output_to(path: Path) -> Iterator[None]:
    """Redirect file descriptors 1 and 2 to the end of `path` within the block; the screen keeps the terminal.

    Textual writes to `sys.__stderr__` and asks `sys.__stdout__` for the terminal's size: both get their own
    descriptors. If the file cannot be opened, what is printed is dropped.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    except OSError:
        log = os.open(os.devnull, os.O_WRONLY)
    kept = {number: os.dup(number) for number in (1, 2)}
    streams = sys.__stdout__, sys.__stderr__
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    # Textual draws on stderr: where that goes to a file, it draws on stdout, which is a terminal.
    drawn_on = kept[2] if os.isatty(kept[2]) else kept[1]
    screen_out, screen_err = (
        io.TextIOWrapper(io.BufferedWriter(_Terminal(one, "w", closefd=False)), encoding="utf-8")
        for one in (kept[1], drawn_on)
    )
    sys.__stdout__, sys.__stderr__ = screen_out, screen_err  # type: ignore[misc]  # that is how Textual finds them
    try:
        yield
    finally:
        for stream in (screen_out, screen_err):
            stream.flush()
        sys.__stdout__, sys.__stderr__ = streams  # type: ignore[misc]
        for number, descriptor in kept.items():
            os.dup2(descriptor, number)
            os.close(descriptor)


def _line(text: str) -> None:
    with suppress(OSError):  # the reader has gone
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
