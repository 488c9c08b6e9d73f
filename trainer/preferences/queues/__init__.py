"""Queues of comparisons for a labelling session, drawn lazily. Imports no MLX and no NumPy.

A queue is a generator that gets its `OpenQueue`; to add one, write it in a module beside this one, and a line in
`mixture.QUEUES`.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

from trainer.errors import Interrupted, ModelError, StorageError, TrainerError, one_line
from trainer.files import FileFormat, read_json
from trainer.preferences.records import Comparison, Preference, QueuePlan, Text
from trainer.preferences.store import PreferenceStore
from trainer.questions import Answer, Question

T = TypeVar("T")

CHECKED = "judge-check.json"
"""Name of the file beside a store that has what a judge said of its labels."""
CHECKED_FORMAT = FileFormat("judge-check")

Ask = Callable[[Question], Answer]
"""Function that asks a model of the run to write; blocks until it has. Raises TrainerError."""
Score = Callable[[str, Sequence[tuple[Text, Text]]], list[float]]
"""Function that scores prompts with completions by a reward model (its run's folder); blocks. Raises TrainerError."""


class Wait(NamedTuple):
    """Sign that a queue has nothing for now. why: in words, as in "the policy is writing pair 3"."""

    why: str


Drawn = Comparison | Wait


@dataclass(slots=True)
class QueueContext:
    """The labeller whom the queues ask for, and what they may use; for one thread from the first look-up on.

    path: of the store. served: keys of the comparisons that are already in the session. ask: asks the model of the
    plan's run; None if there is no model to ask. score: None if nothing can score. Both are called on the queues' own
    threads. wake: called on any thread when an awaited result is there. Every look-up may raise StorageError.
    """

    labeller: str
    path: Path
    served: set[str] = field(default_factory=set)
    ask: Ask | None = None
    score: Score | None = None
    wake: Callable[[], None] = lambda: None
    opened: PreferenceStore | None = None

    @property
    def store(self) -> PreferenceStore | None:
        """The store; None as long as there is none, before the first label."""
        if self.opened is None and self.path.exists():
            self.opened = PreferenceStore(self.path, create=False)
        return self.opened

    def is_new(self, comparison: Comparison) -> bool:
        """Return whether the comparison is not in the session, and its labeller has not judged or skipped it.

        Judgements are looked up one by one, because a store may hold 100,000.
        """
        key = comparison.key
        return key not in self.served and not self.own_labels(key)

    def own_labels(self, key: str) -> list[Preference]:
        """Return the labeller's own labels of a comparison that are not undone, oldest first."""
        labels = self.store.labels_of(key) if self.store is not None else []
        return [one for one in labels if one.judgement.labeller == self.labeller]


@dataclass(slots=True)
class OpenQueue:
    """A queue that is drawn from.

    report: shows the labeller a line, such as that a file cannot be read. random_share: smallest share of pairs that an
    ordered queue draws at random. given: how many of its comparisons became items.
    """

    plan: QueuePlan
    context: QueueContext
    rng: random.Random
    report: Callable[[str], None]
    random_share: float
    given: int = 0


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


def disputed_keys(store: PreferenceStore) -> list[str]:
    """Return the keys of the comparisons in which the last check of a judge disagreed with the labels of then.

    A newer label settles one. None if no judge was checked, or its file cannot be read.
    """
    try:
        found = CHECKED_FORMAT.current(read_json(store.path.with_name(CHECKED)), CHECKED)
        checked, keys = float(found["time"]), [key for key in found["disputed"] if isinstance(key, str)]
    except (OSError, ValueError, TypeError, KeyError, StorageError):
        return []
    labels = ((key, store.labels_of(key)) for key in keys)
    return [key for key, own in labels if own and (own[-1].judgement.time or 0.0) <= checked]
