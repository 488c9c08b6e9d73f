"""Inputs and outputs of a session's queues, and how they wait for a model without blocking others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from trainer.control.control import Interrupted
from trainer.control.questions import Answer, Question
from trainer.errors import ModelError, TrainerError
from trainer.preferences.records import Comparison, Text

T = TypeVar("T")

Ask = Callable[[Question], Answer]
"""Function that asks a model of the run to write; blocks until it has. Raises TrainerError."""
Score = Callable[[str, Sequence[tuple[Text, Text]]], list[float]]
"""Function that scores prompts with completions by a reward model (its run's folder); blocks. Raises TrainerError."""
Tell = Callable[[str], None]
"""Function that shows the labeller a line, such as that a file cannot be read."""


def _nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class QueueContext:
    """The labeller whom the queues ask for, and what they may use.

    store: the file of the preferences. served: keys of the comparisons that are already in the session. ask: asks the
    model of the plan's run; None if there is no model to ask. score: None if nothing can score. Both are called on the
    queues' own threads. heed: called between small steps; an error that it raises ends the drawing. wake: called on any
    thread when an awaited result is there.
    """

    labeller: str
    store: Path
    served: Set[str] = frozenset()
    ask: Ask | None = None
    score: Score | None = None
    heed: Callable[[], None] = _nothing
    wake: Callable[[], None] = _nothing


@dataclass(frozen=True, slots=True)
class Wait:
    """Sign that a queue has nothing for now. why: in words, as in "the policy writes pair 3"."""

    why: str


Drawn = Comparison | Wait


def in_background(work: Callable[[], T], wake: Callable[[], None]) -> Future[T]:
    """Run `work` on a thread of its own, for which nobody waits at the end of the process; then call `wake`."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  who asks for the result gets it
            future.set_exception(error)
        wake()

    threading.Thread(target=run, name="label queue", daemon=True).start()
    return future


def result_of(future: Future[T], what: str) -> T:
    """Return the result of a finished `future`.

    Errors of a model's library become ModelErrors, so that they end only one queue.
    """
    try:
        return future.result()
    except (TrainerError, Interrupted):
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(f"{what}: {reason}") from error


def awaited(work: Callable[[], T], why: str, context: QueueContext) -> Generator[Wait, None, T]:
    """Yield Waits with `why` until `work` is done in the background, and return its result."""
    future = in_background(work, context.wake)
    while not future.done():
        yield Wait(why)
    return result_of(future, why)
