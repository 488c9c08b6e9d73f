"""Items of a session: drawn from its queues by their weights, with repeats of earlier labels."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from trainer.errors import TrainerError
from trainer.preferences.items import Item, QueuePlan, SessionPlan
from trainer.preferences.queues.context import Drawn, QueueContext, Tell
from trainer.preferences.queues.known import Known
from trainer.preferences.queues.listed import again, dataset
from trainer.preferences.queues.ordered import disagreement, uncertain
from trainer.preferences.queues.repeats import Repeats
from trainer.preferences.queues.sampled import samples
from trainer.preferences.queues.written import written_pairs
from trainer.preferences.records import Comparison, Preference

_TOLD = 20  # limit of lines about what was left out


@dataclass(slots=True)
class _Queue:
    plan: QueuePlan
    drawn: Iterator[Drawn]
    given: int = 0


class Mixture:
    """Items, made one at a time as they are drawn; for the thread that draws the first.

    Queues take turns by their weights; a queue that was passed over catches up later. If a queue cannot go on,
    `problems` reports why, and the others go on. The sides of a comparison that was not shown before depend only on the
    plan's seed, the labeller and the comparison, so they are the same when a session is continued.

    The caller applies the plan's limit. Raises StorageError if the store cannot be read, and whatever `context.heed`
    raises.
    """

    def __init__(self, plan: SessionPlan, context: QueueContext) -> None:
        self.problems: list[str] = []
        self.waiting = ""  # what the last call of `draw` is waiting for, in words
        self._plan = plan
        self._known = Known(context.labeller, context.store, context.served)
        self._total = 0
        self._queues = [
            _Queue(one, _drawn_from(one, plan.random, self._known, context, self._rng(place, context), self._tell))
            for place, one in enumerate(plan.queues)
            if one.weight > 0
        ]
        self._repeats = Repeats(plan.repeats, self._known, self._rng("repeats", context))

    @property
    def exhausted(self) -> bool:
        """Whether no more items will come."""
        return not self._queues and not self._repeats.is_due(self._total)

    def draw(self, *, hurry: bool = True) -> Item | None:
        """Return the next item; None if there is none now. Unless `exhausted`, there may be one later.

        hurry: if the queue whose turn it is has nothing yet, draw from another one.
        """
        self.waiting = ""
        if (label := self._repeats.draw(self._total)) is not None:
            order = self._other_order(label)
            return self._given(Item(comparison=label.comparison, queue="repeat", order=order, repeats=label.id))
        for queue in sorted(self._queues, key=self._turn):
            drawn = self._next(queue)
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
        self._known.close()

    def _turn(self, queue: _Queue) -> tuple[bool, float]:
        """Return a sort key that is smallest for the queue whose turn is next.

        Queues that have not had their share come first, and of these the one whose next item is due soonest. So no
        queue is ever a whole item ahead of its share or behind it. Tijdeman 1980, "The chairman assignment problem".
        """
        share = queue.plan.weight / sum(one.plan.weight for one in self._queues)
        given = sum(one.given for one in self._queues)
        return queue.given >= share * (given + 1), (queue.given + 1) / share

    def _next(self, queue: _Queue) -> Drawn | None:
        try:
            return next(queue.drawn, None)
        except TrainerError as error:
            self._tell(str(error))
            return None

    def _given(self, item: Item) -> Item:
        key = item.comparison.key
        self._known.served.add(key)
        if item.queue != "repeat":
            self._repeats.add(key, self._total)
        self._total += 1
        return item

    def _item(self, comparison: Comparison, plan: QueuePlan) -> Item:
        labels = self._known.own_labels(comparison.key) if plan.queue == "again" else []
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
        random.Random(f"{self._plan.seed}/{self._known.labeller}/{comparison.key}").shuffle(places)
        return tuple(places)

    def _rng(self, what: object, context: QueueContext) -> random.Random:
        # Another one when a session is continued, so that a model does not write the same again.
        return random.Random(f"{self._plan.seed}/{context.labeller}/{what}/{len(context.served)}")

    def _tell(self, line: str) -> None:
        if line not in self.problems and len(self.problems) < _TOLD:
            self.problems.append(line)


def _drawn_from(
    plan: QueuePlan, share: float, known: Known, context: QueueContext, rng: random.Random, tell: Tell
) -> Iterator[Drawn]:
    """Return the comparisons of a queue; errors in its plan are raised when the first one is drawn."""
    match plan.queue:
        case "samples":
            return samples(plan.source, known, context, rng, tell)
        case "policy-reference":
            return written_pairs(plan.source, ("policy", "reference"), known, context, rng, tell)
        case "dataset":
            return dataset(plan.source, known, context, tell)
        case "uncertain":
            return uncertain(plan, share, known, context, rng, tell)
        case "disagreement":
            return disagreement(plan, share, known, context, rng, tell)
        case "again":
            return again(plan.keys, known, tell)
        case "repeat":  # set by the plan's `repeats`
            return iter(())
