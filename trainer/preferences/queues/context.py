"""What the queues of a session are given, what they give, and how they wait for a model without holding others up."""

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
"""What a model of the run writes; blocks until it has. Raises TrainerError."""
Score = Callable[[str, Sequence[tuple[Text, Text]]], list[float]]
"""The scores that a reward model (its run's folder) gives prompts with completions; blocks. Raises TrainerError."""
Tell = Callable[[str], None]
"""Takes a line that the labeller should know, such as a file that cannot be read."""


def _nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class QueueContext:
    """Whom the queues ask for, and what they may use.

    store: the file of the preferences. served: keys of the comparisons that the session has already. ask: None where
    there is no model to ask; it is the one of the plan's run. score: None where nothing can score. Both are called on
    threads of the queues' own. heed: called between small steps; what it raises ends the drawing. wake: called on any
    thread when something that was waited for is there.
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
    """A queue has nothing for now. why: in words, as in "the policy writes pair 3"."""

    why: str


Drawn = Comparison | Wait


def in_background(work: Callable[[], T], wake: Callable[[], None]) -> Future[T]:
    """Do `work` on a thread of its own, which nobody waits for at the end of the process."""
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
    """The result of a finished `future`. What a model's library raises becomes a ModelError: it costs one queue."""
    try:
        return future.result()
    except (TrainerError, Interrupted):
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(f"{what}: {reason}") from error


def awaited(work: Callable[[], T], why: str, context: QueueContext) -> Generator[Wait, None, T]:
    """Wait, as `why` says, until `work` is done in the background; returns what it returned."""
    future = in_background(work, context.wake)
    while not future.done():
        yield Wait(why)
    return result_of(future, why)
