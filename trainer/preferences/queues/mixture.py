"""Items of a session: drawn from its queues by their weights, with repeats of earlier labels."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from trainer.errors import TrainerError, counted
from trainer.preferences.formats import ColumnNames, read_preferences
from trainer.preferences.queues import Drawn, OpenQueue, QueueContext, Wait, awaited
from trainer.preferences.queues.run_pairs import samples, uncertain, written_pairs
from trainer.preferences.records import Comparison, Item, Preference, Queue, SessionPlan

_REPORTED = 20  # limit of lines about what was skipped
_APART = 20  # fewest items between a label and its repeat
_TRIES = 5  # at a time; what is not labelled yet is tried again later
_SKIPPED = 200  # known comparisons in a row, after which other queues get a turn


def dataset(queue: OpenQueue) -> Iterator[Drawn]:
    """Yield the comparisons of a file, a folder or a dataset, in its order; its judgements are ignored.

    The source has preferences in any format that can be imported, or rows that are yet to be judged: prompt and
    completions, or prompt, a and b. Broken rows are skipped and reported. Raises DataError for what cannot be read.
    """
    source, context = queue.plan.source, queue.context
    # Loading a dataset by its name imports the library, which takes seconds.
    columns = ColumnNames.of(queue.plan.columns)
    work = partial(read_preferences, source, columns=columns, skip_broken=True, unjudged=True)
    reading = yield from awaited(work, f"reading '{source}'", context)
    yield from (preference.comparison for preference in reading)
    if reading.broken:
        queue.report(f"{counted(reading.broken, 'broken row')} of '{source}' skipped, the first: {reading.problems[0]}")


def again(queue: OpenQueue) -> Iterator[Comparison]:
    """Yield the comparisons of the store with the plan's keys, judged or not."""
    context, missing = queue.context, 0
    keys = dict.fromkeys(key for key in queue.plan.keys if key not in context.served)
    for key in keys:
        if key in context.served:
            continue
        if comparison := context.store.comparison(key) if context.store is not None else None:
            yield comparison
        else:
            missing += 1
    if missing:
        queue.report(
            f"{missing} of {len(queue.plan.keys)} comparisons are not in '{context.path}': import their source first"
        )


QUEUES: dict[Queue, Callable[[OpenQueue], Iterator[Drawn]]] = {
    "samples": samples,
    "policy-reference": partial(written_pairs, writers=("policy", "reference")),
    "dataset": dataset,
    "uncertain": uncertain,
    "again": again,
    "repeat": lambda queue: iter(()),  # set by the session's `repeats`
}
"""Queues by name. Errors in a plan are raised when the first comparison is drawn."""


class Mixture:
    """Items, made one at a time as they are drawn; for the thread that draws the first.

    Queues take turns by their weights; a queue that was passed over catches up later. If a queue cannot go on,
    `problems` reports why, and the others go on. What the labeller has judged is asked again only by the queue "again".
    Where the session has comparisons whose only label may be repeated, at least 20 items later, the plan's share of the
    items, which is never exceeded, are such repeats; items that the session had when it was continued count as its
    newest. The sides of a comparison that was not shown before depend only on the plan's seed, the labeller and the
    comparison, so they are the same when a session is continued.

    The caller applies the plan's limit. Raises StorageError if the store cannot be read.
    """

    def __init__(self, plan: SessionPlan, context: QueueContext) -> None:
        self.problems: list[str] = []
        self.waiting = ""  # what the last call of `draw` is waiting for, in words
        self._plan = plan
        self._context = context
        self._total = self._repeated = 0  # items given, and the repeats among them
        self._too_new = deque((0, key) for key in sorted(context.served))  # place in the session and key
        self._ready: list[str] = []  # keys that may be repeated
        self._queues: list[tuple[OpenQueue, Iterator[Drawn]]] = []
        # Others when a session is continued, so that a model does not write the same again.
        seed = partial("{}/{}/{}/{}".format, plan.seed, context.labeller)
        self._rng = random.Random(seed("repeats", len(context.served)))
        for place, one in enumerate(plan.queues):
            if one.weight > 0:
                rng = random.Random(seed(place, len(context.served)))
                queue = OpenQueue(one, context, rng, self._report, plan.random)
                self._queues.append((queue, QUEUES[one.queue](queue)))

    @property
    def exhausted(self) -> bool:
        """Return whether no more items will come."""
        return not self._queues and not self._is_repeat_due()

    def draw(self, *, hurry: bool = True) -> Item | None:
        """Return the next item; None if there is none now. Unless `exhausted`, there may be one later.

        hurry: if the queue whose turn it is has nothing yet, draw from another one.
        """
        self.waiting = ""
        item = self._repeat() if self._is_repeat_due() else None
        if item is None:
            item = self._next(hurry)
        if item is not None:
            key = item.comparison.key
            self._context.served.add(key)
            if item.queue != "repeat":
                self._too_new.append((self._total, key))
            self._total += 1
        return item

    def close(self) -> None:
        """Close the store; call this on the thread that drew."""
        if self._context.opened is not None:
            self._context.opened.close()
        self._context.opened = None

    def _next(self, hurry: bool) -> Item | None:
        weights = sum(queue.plan.weight for queue, _ in self._queues)
        given = sum(queue.given for queue, _ in self._queues)

        def turn(one: tuple[OpenQueue, Iterator[Drawn]]) -> tuple[bool, float]:
            """Return a sort key that is smallest for the queue whose turn is next.

            Queues that have not had their share come first, and of these the one whose next item is due soonest. So no
            queue is ever a whole item ahead of its share or behind it. Tijdeman 1980, "The chairman assignment
            problem".
            """
            share = one[0].plan.weight / weights
            return one[0].given >= share * (given + 1), (one[0].given + 1) / share

        for queue, comparisons in sorted(self._queues, key=turn):
            try:
                drawn = self._new(queue, comparisons)
            except TrainerError as error:
                self._report(str(error))
                drawn = None
            if isinstance(drawn, Comparison):
                queue.given += 1
                mine = self._context.own_labels(drawn.key) if queue.plan.queue == "again" else []
                # Not a repeat of these: it was chosen for what they say, so it would not measure self-agreement.
                order = self._order(drawn, *mine[-1:])
                return Item(comparison=drawn, queue=queue.plan.queue, order=order)
            if drawn is None:
                self._queues.remove((queue, comparisons))
            else:
                self.waiting = self.waiting or drawn.why
                if not hurry:
                    break
        return None

    def _new(self, queue: OpenQueue, comparisons: Iterator[Drawn]) -> Drawn | None:
        """Return the next comparison of a queue that is new, or a Wait; None if there is none."""
        for _ in range(_SKIPPED):
            drawn = next(comparisons, None)
            if not isinstance(drawn, Comparison):
                return drawn
            if queue.plan.queue == "again" or self._context.is_new(drawn):
                return drawn
        self._context.wake()
        return Wait("skipping comparisons judged before")

    def _is_repeat_due(self) -> bool:
        while self._too_new and self._total - self._too_new[0][0] > _APART:
            self._ready.append(self._too_new.popleft()[1])
        return bool(self._ready) and self._repeated + 1 <= self._plan.repeats * (self._total + 1)

    def _repeat(self) -> Item | None:
        """Return a random item that repeats an earlier one, if that has been judged once and not skipped."""
        for _ in range(min(_TRIES, len(self._ready))):
            place = self._rng.randrange(len(self._ready))
            self._ready[place], self._ready[-1] = self._ready[-1], self._ready[place]
            key = self._ready.pop()
            labels = self._context.own_labels(key)
            if not labels:
                self._ready.append(key)
            elif len(labels) == 1 and labels[0].judgement.verdict != "skip":
                self._repeated += 1
                (label,) = labels
                order = self._order(label.comparison, label)
                return Item(comparison=label.comparison, queue="repeat", order=order, repeats=label.id)
        return None

    def _order(self, comparison: Comparison, label: Preference | None = None) -> tuple[int, ...]:
        """Return the sides of a comparison; the reverse of those shown for `label`."""
        places = list(range(len(comparison.completions)))
        random.Random(f"{self._plan.seed}/{self._context.labeller}/{comparison.key}").shuffle(places)
        if label is None:
            return tuple(places)
        shown = label.judgement.order_shown
        return tuple(reversed(shown if len(shown) == len(places) else places))

    def _report(self, line: str) -> None:
        if line not in self.problems and len(self.problems) < _REPORTED:
            self.problems.append(line)
