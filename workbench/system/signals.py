"""Signal handling: a signal ends a run after a checkpoint; a second Ctrl+C ends a headless process at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130  # 128 + SIGINT, the shell's convention
REASONS = {
    signal.SIGINT: "interrupted (SIGINT)",
    signal.SIGTERM: "terminated (SIGTERM)",
    signal.SIGHUP: "the terminal was closed (SIGHUP)",
    signal.SIGQUIT: "asked to quit (SIGQUIT)",
    signal.SIGUSR1: "asked to stop (SIGUSR1)",
    signal.SIGUSR2: "asked to stop (SIGUSR2)",
}
"""The signals that are handled, each with the reason that it gives for the end of a run."""


def leave_now() -> None:
    """End the process without waiting for the trainer, which may be inside native code for seconds."""
    os._exit(INTERRUPTED)


@contextmanager
def handled_signals(handle: Callable[[signal.Signals], bool]) -> Iterator[None]:
    """Call `handle` for every signal of `REASONS` that arrives within the block.

    handle: called inside a signal handler, so it must not print through a buffer; returns whether the signal ends the
    process. After such a signal, all of them are ignored from the end of the block on: a scheduler that repeats its
    signal must not kill a process that is about to exit. Otherwise the previous handlers are restored.
    A signal that was ignored when the process started (nohup, a shell's background job) stays ignored.
    """
    ending = False

    def on_signal(number: int, _: FrameType | None) -> None:
        nonlocal ending
        ending = handle(signal.Signals(number)) or ending

    heard = [number for number in REASONS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, on_signal) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if ending else handler)


@contextmanager
def stop_on_signals(stop: Callable[[str], None], last: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Call `stop(reason)` for every signal of `REASONS` within the block; a SIGINT after another leaves at once.

    stop: asks the run to checkpoint and end, as `TrainingThread.stop`; last: called before the process
    ends at once. Both run inside a signal handler: they must not print through a buffer.
    """
    stopping = False

    def handle(number: signal.Signals) -> bool:
        nonlocal stopping
        if stopping and number == signal.SIGINT:
            last()
            leave_now()
        stopping = True
        stop(REASONS[number])
        return True

    with handled_signals(handle):
        yield
