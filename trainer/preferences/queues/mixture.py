"""Items of a session: drawn from its queues by their weights, with repeats of earlier labels."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from trainer.data.readers import source_rows
from trainer.errors import TrainerError
from trainer.plurals import counted
from trainer.preferences.formats import ColumnNames, read_preferences
from trainer.preferences.queues import (
    Drawn,
    LabelHistory,
    QueueContext,
    QueueInputs,
    Supply,
    awaited,
    in_background,
    only_new,
)
from trainer.preferences.queues.run_pairs import policy_and_reference, samples
from trainer.preferences.queues.scored_pairs import disagreement, uncertain
from trainer.preferences.records import Comparison, Item, Preference, Queue, QueuePlan, SessionPlan

_REPORTED = 20  # limit of lines about what was skipped
_APART = 20  # fewest items between a label and its repeat
_COUNTED = 50_000  # most rows of a source that are counted, in about a second
_TRIES = 5  # at a time; what is not labelled yet is tried again later


def dataset(plan: QueuePlan, inputs: QueueInputs) -> Iterator[Drawn]:
    """Yield the comparisons of a file, a folder or a dataset, in its order; its judgements are ignored.

    The source has preferences in any format that can be imported, or rows that are yet to be judged: prompt and
    completions, or prompt, a and b. Broken rows are skipped and reported. Raises DataError for what cannot be read.
    """
    # Loading a dataset by its name imports the library, which takes seconds.
    columns = ColumnNames.of(plan.columns)
    work = partial(read_preferences, plan.source, columns=columns, skip_broken=True, unjudged=True)
    reading = yield from awaited(work, f"reading '{plan.source}'", inputs.context)
    rows = in_background(partial(_rows, plan.source), inputs.context.wake)

    def total() -> int | None:
        count = rows.result() if rows.done() and rows.exception() is None else None
        return None if count is None else count - reading.broken

    inputs.supply.total = total
    yield from only_new((preference.comparison for preference in reading), inputs)
    if reading.broken:
        inputs.report(
            f"{counted(reading.broken, 'broken row')} of '{plan.source}' skipped, the first: {reading.problems[0]}"
        )


def _rows(source: str) -> int | None:
    """Return how many rows can be read in a file; None for more than `_COUNTED`, and for a dataset."""
    if not Path(source).is_file():
        return None
    count = sum(1 for _ in islice(source_rows(source, "train", lambda _: None), _COUNTED + 1))
    return count if count <= _COUNTED else None


def again(plan: QueuePlan, inputs: QueueInputs) -> Iterator[Comparison]:
    """Yield the comparisons of the store with the plan's keys, judged or not."""
    history, missing = inputs.history, {}
    keys = {*plan.keys} - history.served
    inputs.supply.total = lambda: len(keys - history.served)
    for key in dict.fromkeys(plan.keys):
        if key in history.served:
            continue
        if labels := history.labels_of(key):
            yield labels[-1].comparison
        else:
            missing[key] = True
    for comparison in history.comparisons() if missing else ():
        if missing.pop(comparison.key, False) and comparison.key not in history.served:
            yield comparison
        if not missing:
            return
    if missing:
        inputs.report(
            f"{len(missing)} of {len(plan.keys)} comparisons are not in '{history.path}': import their source first"
        )


QUEUES: dict[Queue, Callable[[QueuePlan, QueueInputs], Iterator[Drawn]]] = {
    "samples": samples,
    "policy-reference": policy_and_reference,
    "dataset": dataset,
    "uncertain": uncertain,
    "disagreement": disagreement,
    "again": again,
    "repeat": lambda plan, inputs: iter(()),  # set by the session's `repeats`
}
"""Queues by name. Errors in a plan are raised when the first comparison is drawn."""


@dataclass(slots=True)
class _Queue:
    plan: QueuePlan
    drawn: Iterator[Drawn]
    supply: Supply
    given: int = 0


class Mixture:
    """Items, made one at a time as they are drawn; for the thread that draws the first.

    Queues take turns by their weights; a queue that was passed over catches up later. If a queue cannot go on,
    `problems` reports why, and the others go on. The sides of a comparison that was not shown before depend only on the
    plan's seed, the labeller and the comparison, so they are the same when a session is continued.

    The caller applies the plan's limit. Raises StorageError if the store cannot be read, and whatever `context.check`
    raises.
    """

    def __init__(self, plan: SessionPlan, context: QueueContext) -> None:
        self.problems: list[str] = []
        self.waiting = ""  # what the last call of `draw` is waiting for, in words
        self._plan = plan
        self._history = LabelHistory(context.labeller, context.store, context.served)
        self._total = 0
        self._queues: list[_Queue] = []
        for place, one in enumerate(plan.queues):
            if one.weight > 0:
                rng, supply = self._rng(place, context), Supply()
                inputs = QueueInputs(context, self._history, rng, self._report, plan.random, supply)
                self._queues.append(_Queue(one, QUEUES[one.queue](one, inputs), supply))
        self._repeats = _Repeats(plan.repeats, self._history, self._rng("repeats", context))

    @property
    def exhausted(self) -> bool:
        """Return whether no more items will come."""
        return not self._queues and not self._repeats.is_due(self._total)

    @property
    def left(self) -> int | None:
        """Return how many items are still to come at most, without repeats; None if a queue does not know."""
        counts = [queue.supply.left for queue in self._queues]
        return None if None in counts else sum(filter(None, counts))

    def draw(self, *, hurry: bool = True) -> Item | None:
        """Return the next item; None if there is none now. Unless `exhausted`, there may be one later.

        hurry: if the queue whose turn it is has nothing yet, draw from another one.
        """
        self.waiting = ""
        if (label := self._repeats.draw(self._total)) is not None:
            order = self._other_order(label)
            return self._given(Item(comparison=label.comparison, queue="repeat", order=order, repeats=label.id))
        for queue in sorted(self._queues, key=self._turn):
            try:
                drawn = next(queue.drawn, None)
            except TrainerError as error:
                self._report(str(error))
                drawn = None
            if isinstance(drawn, Comparison):
                queue.given += 1
                return self._given(self._item(drawn, queue.plan))
            if drawn is None:
                self._queues.remove(queue)
            else:
                self.waiting = self.waiting or drawn.why
                if not hurry:
                    break
        return None

    def close(self) -> None:
        """Close the store; call this on the thread that drew."""
        self._history.close()

    def _turn(self, queue: _Queue) -> tuple[bool, float]:
        """Return a sort key that is smallest for the queue whose turn is next.

        Queues that have not had their share come first, and of these the one whose next item is due soonest. So no
        queue is ever a whole item ahead of its share or behind it. Tijdeman 1980, "The chairman assignment problem".
        """
        share = queue.plan.weight / sum(one.plan.weight for one in self._queues)
        given = sum(one.given for one in self._queues)
        return queue.given >= share * (given + 1), (queue.given + 1) / share

    def _given(self, item: Item) -> Item:
        key = item.comparison.key
        self._history.served.add(key)
        if item.queue != "repeat":
            self._repeats.add(key, self._total)
        self._total += 1
        return item

    def _item(self, comparison: Comparison, plan: QueuePlan) -> Item:
        labels = self._history.own_labels(comparison.key) if plan.queue == "again" else []
        # Not a repeat of these labels: it was chosen for what they say, so it would not measure self-agreement.
        order = self._other_order(labels[-1]) if labels else self._order(comparison)
        return Item(comparison=comparison, queue=plan.queue, order=order)

    def _other_order(self, label: Preference) -> tuple[int, ...]:
        """Return the sides that are the reverse of those shown for this label."""
        shown = label.judgement.order_shown
        whole = len(shown) == len(label.comparison.completions)
        return tuple(reversed(shown if whole else self._order(label.comparison)))

    def _order(self, comparison: Comparison) -> tuple[int, ...]:
        places = list(range(len(comparison.completions)))
        random.Random(f"{self._plan.seed}/{self._history.labeller}/{comparison.key}").shuffle(places)
        return tuple(places)

    def _rng(self, what: object, context: QueueContext) -> random.Random:
        # Another one when a session is continued, so that a model does not write the same again.
        return random.Random(f"{self._plan.seed}/{context.labeller}/{what}/{len(context.served)}")

    def _report(self, line: str) -> None:
        if line not in self.problems and len(self.problems) < _REPORTED:
            self.problems.append(line)


class _Repeats:
    """Comparisons of a session that can be repeated to measure self-agreement: each once, if judged and not skipped.

    share: of all items; it is never exceeded. Items that the session had when it was continued count as its newest.
    """

    def __init__(self, share: float, history: LabelHistory, rng: random.Random) -> None:
        self._share = share
        self._history = history
        self._rng = rng
        self._given = 0
        self._too_new = deque((0, key) for key in sorted(history.served))  # (place in the session, key)
        self._ready: list[str] = []

    def add(self, key: str, place: int) -> None:
        """Record that the item at `place` is the comparison `key`."""
        self._too_new.append((place, key))

    def is_due(self, total: int) -> bool:
        """Return whether the next item, after `total` of them, should be a repeat."""
        while self._too_new and total - self._too_new[0][0] > _APART:
            self._ready.append(self._too_new.popleft()[1])
        return bool(self._ready) and self._given + 1 <= self._share * (total + 1)

    def draw(self, total: int) -> Preference | None:
        """Return the label to repeat as the next item, after `total`; None if none is due or available."""
        if not self.is_due(total):
            return None
        for _ in range(min(_TRIES, len(self._ready))):
            place = self._rng.randrange(len(self._ready))
            self._ready[place], self._ready[-1] = self._ready[-1], self._ready[place]
            key = self._ready.pop()
            labels = self._history.own_labels(key)
            if not labels:
                self._ready.append(key)
            elif len(labels) == 1 and labels[0].judgement.verdict != "skip":
                self._given += 1
                return labels[0]
        return None
