"""Queues of comparisons for a labelling session, drawn lazily. Imports no MLX and no NumPy.

A queue is a generator of a plan and `QueueInputs`; to add one, write it in a module beside this one, and a line in
`mixture.QUEUES`.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Generator, Iterator, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from trainer.errors import Interrupted, ModelError, TrainerError, one_line
from trainer.preferences.records import Comparison, Preference, Text
from trainer.preferences.store import PreferenceStore
from trainer.questions import Answer, Question

T = TypeVar("T")

Ask = Callable[[Question], Answer]
"""Function that asks a model of the run to write; blocks until it has. Raises TrainerError."""
Score = Callable[[str, Sequence[tuple[Text, Text]]], list[float]]
"""Function that scores prompts with completions by a reward model (its run's folder); blocks. Raises TrainerError."""
Report = Callable[[str], None]
"""Function that shows the labeller a line, such as that a file cannot be read."""

_SKIPPED = 200  # known comparisons in a row, after which other queues get a turn


@dataclass(frozen=True, slots=True)
class QueueContext:
    """The labeller whom the queues ask for, and what they may use.

    store: the file of the preferences. served: keys of the comparisons that are already in the session. ask: asks the
    model of the plan's run; None if there is no model to ask. score: None if nothing can score. Both are called on the
    queues' own threads. check: called between small steps; an error that it raises ends the drawing. wake: called on
    any thread when an awaited result is there.
    """

    labeller: str
    store: Path
    served: Set[str] = frozenset()
    ask: Ask | None = None
    score: Score | None = None
    check: Callable[[], None] = lambda: None
    wake: Callable[[], None] = lambda: None


class Wait(NamedTuple):
    """Sign that a queue has nothing for now. why: in words, as in "the policy is writing pair 3"."""

    why: str


Drawn = Comparison | Wait


class LabelHistory:
    """Comparisons that are not asked again: those in the session, and those that its labeller has judged.

    Judgements are looked up one by one, because a store may hold 100,000. From the first look-up on, it is for one
    thread. Every look-up may raise StorageError.
    """

    def __init__(self, context: QueueContext) -> None:
        self.labeller = context.labeller
        self.path = context.store
        self.served = set(context.served)
        self._store: PreferenceStore | None = None

    @property
    def store(self) -> PreferenceStore | None:
        """The store; None as long as there is none, before the first label."""
        if self._store is None and self.path.exists():
            self._store = PreferenceStore(self.path, create=False)
        return self._store

    def is_new(self, comparison: Comparison) -> bool:
        """Return whether the comparison is not in the session, and its labeller has not judged or skipped it."""
        key = comparison.key
        return key not in self.served and not self.own_labels(key)

    def own_labels(self, key: str) -> list[Preference]:
        """Return the labeller's own labels of a comparison that are not undone, oldest first."""
        labels = self.store.labels_of(key) if self.store is not None else []
        return [one for one in labels if one.judgement.labeller == self.labeller]

    def close(self) -> None:
        """Close the store; call this on the thread that used it."""
        if self._store is not None:
            self._store.close()
        self._store = None


@dataclass(slots=True)
class QueueInputs:
    """Inputs of one queue, and how much it has.

    random_share: smallest share of pairs that an ordered queue draws at random. total: number of its comparisons, those
    included that are not new; None while that is not known. drawn: how many of them are used up.
    """

    context: QueueContext
    history: LabelHistory
    rng: random.Random
    report: Report
    random_share: float
    total: Callable[[], int | None] = lambda: None
    drawn: int = 0


def only_new(found: Iterator[Drawn], inputs: QueueInputs) -> Iterator[Drawn]:
    """Yield the new ones of `found`; after many known ones in a row, let other queues go first."""
    skipped = 0
    for drawn in found:
        inputs.context.check()
        inputs.drawn += isinstance(drawn, Comparison)
        if isinstance(drawn, Wait) or inputs.history.is_new(drawn):
            skipped = 0
            yield drawn
            continue
        skipped += 1
        if skipped % _SKIPPED == 0:
            inputs.context.wake()
            yield Wait("skipping comparisons judged before")


def in_background(work: Callable[[], T], what: str, wake: Callable[[], None]) -> Future[T]:
    """Run `work` on a thread of its own, for which nobody waits at the end of the process; then call `wake`.

    Errors of a model's library become ModelErrors with `what`, so that they end only one queue.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except (TrainerError, Interrupted) as error:
            future.set_exception(error)
        except BaseException as error:  # noqa: BLE001  whatever a library raises
            future.set_exception(ModelError(f"{what}: {one_line(error)}"))
        wake()

    threading.Thread(target=run, name="label queue", daemon=True).start()
    return future


def awaited(work: Callable[[], T], why: str, context: QueueContext) -> Generator[Wait, None, T]:
    """Yield Waits with `why` until `work` is done in the background, and return its result."""
    future = in_background(work, why, context.wake)
    while not future.done():
        yield Wait(why)
    return future.result()
