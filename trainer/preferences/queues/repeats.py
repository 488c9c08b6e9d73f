"""Repeats of the labeller's own labels, to measure self-agreement."""

from __future__ import annotations

import random
from collections import deque

from trainer.preferences.queues.known import Known
from trainer.preferences.records import Preference

_APART = 20  # fewest items between a label and its repeat
_TRIES = 5  # at a time; what is not labelled yet is tried again later


class Repeats:
    """Comparisons of a session that can be repeated: each once, if it was judged and not skipped.

    share: of all items; it is never exceeded. Items that the session had when it was continued count as its newest.
    """

    def __init__(self, share: float, known: Known, rng: random.Random) -> None:
        self._share = share
        self._known = known
        self._rng = rng
        self._given = 0
        self._too_new = deque((0, key) for key in sorted(known.served))  # (place in the session, key)
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
            labels = self._known.own_labels(key)
            if not labels:
                self._ready.append(key)
            elif len(labels) == 1 and labels[0].judgement.verdict != "skip":
                self._given += 1
                return labels[0]
        return None
