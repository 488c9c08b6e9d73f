"""Signals end a run the gentle way: checkpoint first. A second Ctrl+C ends the process at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130  # 128 + SIGINT, the shell's convention
_REASONS = {
    signal.SIGINT: "interrupted (SIGINT)",
    signal.SIGTERM: "terminated (SIGTERM)",
    signal.SIGHUP: "the terminal was closed (SIGHUP)",
}


def leave_now() -> None:
    """End the process without waiting for the trainer, which may be inside native code for seconds."""
    os._exit(INTERRUPTED)


@contextmanager
def stop_on_signals(
    stop: Callable[[str], None], restore: Callable[[], None], leave: Callable[[], None] = leave_now
) -> Iterator[None]:
    """Within the block SIGINT, SIGTERM and SIGHUP call `stop(reason)`; a later SIGINT leaves at once.

    stop: asks the run to checkpoint and end, as `Session.stop`; restore: leaves the terminal usable, called
    before `leave`. Both run inside a signal handler: they must not print through a buffer.
    A signal that the process was started with ignored (nohup, a shell's background job) stays ignored.
    """
    stopping = False

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal stopping
        if stopping and number == signal.SIGINT:
            restore()
            leave()
        stopping = True
        stop(_REASONS[signal.Signals(number)])

    heard = [number for number in _REASONS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
