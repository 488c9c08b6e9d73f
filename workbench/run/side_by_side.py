"""Runs that train side by side, each in a process of its own."""

from __future__ import annotations

import signal
import threading
import time
from queue import SimpleQueue
from typing import NamedTuple, Protocol

from trainer.runs.folder import RunFolder

_LOOK = 1.0  # seconds between two looks whether another process still trains a run


class Process(Protocol):
    """A process that trains a run: a `subprocess.Popen`, or a process that somebody else started."""

    def wait(self) -> int:
        """Block until it has ended; return its exit code, negative after a signal."""

    def send_signal(self, sig: int) -> None:
        """Send it a signal, unless it has ended."""


class TrainedElsewhere:
    """A process of somebody else that trains the run in `folder`. Its end is awaited; it gets no signals."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._given_up = threading.Event()

    def wait(self) -> int:
        """Block until nobody trains the run, or a signal was to be sent."""
        while self._folder.is_live() and not self._given_up.wait(_LOOK):
            pass
        return 0

    def send_signal(self, sig: int) -> None:
        """Wait no longer."""
        self._given_up.set()


class End(NamedTuple):
    """End of a process. code: as `Process.wait` returns it. seconds: since its start."""

    name: str
    code: int
    seconds: float


class SideBySide:
    """Processes that train runs at the same time, by the names of the runs. All methods are for one thread."""

    def __init__(self) -> None:
        self._running: dict[str, Process] = {}
        # As in `EventQueue`: of these calls, a signal handler may make only SimpleQueue.put.
        self._ends: SimpleQueue[End | None] = SimpleQueue()
        self.stop_reason = ""  # why they were asked to stop; empty before that

    def __len__(self) -> int:
        """Return the number of processes whose end `wait` has not returned."""
        return len(self._running)

    def add(self, name: str, process: Process) -> None:
        """Take a process that has just been started."""
        self._running[name] = process
        if self.stop_reason:  # a signal came while it was started
            process.send_signal(signal.SIGTERM)
        threading.Thread(target=self._await, args=(name, process), name=f"end of {name}", daemon=True).start()

    def wait(self) -> End | None:
        """Block until a process has ended; return None, once, when `stop` was called meanwhile."""
        if (end := self._ends.get()) is not None:
            del self._running[end.name]
        return end

    def stop(self, reason: str) -> None:
        """Ask all runs to save a checkpoint and end. May be called in a signal handler, and repeatedly."""
        if not self.stop_reason:
            self.stop_reason = reason
            self._ends.put(None)
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End all processes at once, without checkpoints. May be called in a signal handler."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        for process in [*self._running.values()]:
            process.send_signal(number)

    def _await(self, name: str, process: Process) -> None:
        began = time.monotonic()
        code = process.wait()
        self._ends.put(End(name, code, time.monotonic() - began))
