"""Process that runs one function after another, so that a crash or a hang ends only the function."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any


class WorkerError(RuntimeError):
    """A function did not finish: it raised an exception, its time was up, or its process ended."""


class Worker:
    """Process that runs functions one after another; a new one takes its place after a failure."""

    def __init__(self) -> None:
        self._process: Any = None
        self._pipe: Any = None

    def results(self, function: Callable[..., Iterable[Any]], *arguments: Any, seconds: float) -> Iterator[Any]:
        """Yield what `function(*arguments)` yields in the process, as it comes.

        seconds: for the whole call; the process starts within them. Raises WorkerError.
        """
        if seconds <= 0:
            raise WorkerError("no time is left")
        end = time.monotonic() + seconds
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
        try:
            self._pipe.send((function, arguments))
            while self._pipe.poll(max(end - time.monotonic(), 0)):
                kind, found = self._pipe.recv()
                if kind == "end":
                    return
                if kind == "error":
                    self._stop()  # its device may be out of memory, and its results may still hold some
                    raise WorkerError(found)
                yield found
        except (EOFError, ConnectionError):
            raise WorkerError(self._stop(seconds_to_end=10)) from None
        self._stop()
        raise WorkerError(f"no result in {seconds:.3g} s")

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._stop()

    def _stop(self, seconds_to_end: float = 0) -> str:
        """End the process, unless it ends by itself in time, and return how it ended."""
        process, self._process = self._process, None
        process.join(seconds_to_end)
        process.kill()
        process.join()
        code = process.exitcode
        return f"process killed by {signal.Signals(-code).name}" if code < 0 else f"process exited with code {code}"


def _serve(pipe: Connection) -> None:
    """Run the functions that arrive on `pipe` until its other end is closed."""
    with contextlib.suppress(EOFError), contextlib.redirect_stdout(sys.stderr):  # some of mlx-lm's modules print
        while True:
            function, arguments = pipe.recv()
            try:
                for found in function(*arguments):
                    pipe.send(("result", found))
            except Exception as error:  # noqa: BLE001  the caller reports any
                text = next(iter(str(error).strip().splitlines()), "")
                name = "" if type(error) is RuntimeError else f"{type(error).__name__}: "  # MLX's are all of that type
                pipe.send(("error", f"{name}{text}"))
            else:
                pipe.send(("end", None))
