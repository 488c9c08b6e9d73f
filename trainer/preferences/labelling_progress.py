"""Progress of a labelling session: speed, biases and self-agreement, updated label by label."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from itertools import pairwise
from statistics import median
from typing import Self

from trainer.preferences.agreement import cohen_kappa, wilson_interval
from trainer.preferences.conversations import length_in_characters
from trainer.preferences.items import Progress, SessionItem, Share
from trainer.preferences.records import Judgement

PAUSE = 300.0  # seconds; a longer gap between two labels is a pause
_RECENT = 50  # newest labels, which the speed is measured on

First = Callable[[int], Judgement | None]
_Said = str | tuple[tuple[int, ...], ...]


class ProgressCounter:
    """Counter of a session's progress, updated as labels are made and undone.

    The cost of a label does not depend on how many there are, except for moving numbers within sorted lists: 3 us at
    10,000.

    first: returns the judgement of a label by its id; None if it is undone. Repeats are compared with it.
    """

    def __init__(self, first: First) -> None:
        self._first = first
        self._done = 0
        self._pace = _Pace()
        self._seconds: list[float] = []  # sorted
        self._left = _Tally()
        self._longer = _Tally()
        self._repeats = _Repeats()

    @classmethod
    def of(cls, items: Iterable[SessionItem], first: First) -> Self:
        """Count the labels of `items`, which are in the order of labelling."""
        counter = cls(first)
        for item in items:
            counter.add(item)
        return counter

    def add(self, item: SessionItem) -> None:
        """Count the label of `item`, the newest one."""
        assert item.label is not None
        label, judgement = item.label.id, item.label.judgement
        if item.item.repeats:
            self._repeats.add(label, judgement, item.item.repeats, self._first(item.item.repeats))
        if judgement.time is not None:
            self._pace.add(label, judgement.time)
        if judgement.seconds is not None:
            insort(self._seconds, judgement.seconds)
        self._count(item, 1)

    def remove(self, item: SessionItem) -> None:
        """Remove the label of `item`, which was counted before."""
        assert item.label is not None
        label, judgement = item.label.id, item.label.judgement
        if judgement.time is not None:
            self._pace.remove(label)
        if judgement.seconds is not None:
            del self._seconds[bisect_left(self._seconds, judgement.seconds)]
        self._repeats.remove(label)
        self._count(item, -1)

    def progress(self, left: int | None) -> Progress:
        """Return the progress. left: number of items still to be judged; None if not known."""
        per_hour = self._pace.per_hour()
        same, kappa = self._repeats.agreement()
        return Progress(
            done=self._done,
            left=left,
            per_hour=per_hour,
            median_seconds=median(self._seconds) if self._seconds else math.nan,
            eta_seconds=math.nan if left is None else left / per_hour * 3600,
            streak=self._pace.streak(),
            left_side=self._left.share(),
            longer=self._longer.share(),
            same=same,
            kappa=kappa,
        )

    def _count(self, item: SessionItem, by: int) -> None:
        assert item.label is not None
        self._done += by
        if item.label.judgement.choice not in ("a", "b"):
            return  # neither is chosen, or there are more than two
        chosen = item.label.judgement.ranking[0][0]
        lengths = [length_in_characters(completion) for completion in item.item.comparison.completions]
        self._left.count(item.item.order[0] == chosen, by)
        if lengths[0] != lengths[1]:
            self._longer.count(lengths[chosen] == max(lengths), by)


class _Tally:
    """Count of how often something was true."""

    def __init__(self) -> None:
        self._so = self._total = 0

    def count(self, so: bool, by: int) -> None:
        self._so += by * so
        self._total += by

    def share(self) -> Share:
        return _share(self._so, self._total)


class _Pace:
    """Times of the labels that are not undone, side by side with their ids, in the order of labelling."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._times: list[float] = []
        self._starts: list[int] = []  # ids of the labels that follow a pause, or nothing; sorted

    def add(self, id_: int, time: float) -> None:
        self._ids.append(id_)
        self._times.append(time)
        self._look(len(self._ids) - 1)

    def remove(self, id_: int) -> None:
        place = bisect_left(self._ids, id_)
        del self._ids[place], self._times[place]
        self._forget_start(id_)
        if place < len(self._ids):
            self._look(place)

    def per_hour(self) -> float:
        """Return labels per hour; NaN if no two labels follow each other without a pause."""
        recent = self._times[-_RECENT:]
        gaps = [later - earlier for earlier, later in pairwise(recent) if _is_work(later - earlier)]
        return 3600 * len(gaps) / total if (total := sum(gaps)) else math.nan

    def streak(self) -> int:
        return len(self._ids) - bisect_left(self._ids, self._starts[-1]) if self._ids else 0

    def _look(self, place: int) -> None:
        """Record whether the label at `place` begins a streak."""
        id_ = self._ids[place]
        self._forget_start(id_)
        if place == 0 or not _is_work(self._times[place] - self._times[place - 1]):
            insort(self._starts, id_)

    def _forget_start(self, id_: int) -> None:
        place = bisect_left(self._starts, id_)
        if self._starts[place : place + 1] == [id_]:
            del self._starts[place]


class _Repeats:
    """Judgements of items that repeat a label, beside the first judgements. Skips are ignored."""

    def __init__(self) -> None:
        self._said: dict[int, tuple[_Said, _Said]] = {}  # first and repeated judgement, by the repeat's label
        self._repeats_of: dict[int, list[int]] = {}
        self._agreement: tuple[Share, float] | None = None  # None: to be computed again

    def add(self, label: int, judgement: Judgement, repeats: int, first: Judgement | None) -> None:
        if first is None or "skip" in (first.verdict, judgement.verdict):
            return
        self._said[label] = _what(first), _what(judgement)
        self._repeats_of.setdefault(repeats, []).append(label)
        self._agreement = None

    def remove(self, label: int) -> None:
        """Remove the label, whether it is a repeat, repeated, or both."""
        for gone in (label, *self._repeats_of.pop(label, ())):
            if self._said.pop(gone, None) is not None:
                self._agreement = None

    def agreement(self) -> tuple[Share, float]:
        """Return the share of repeats that say the same, and Cohen's kappa."""
        if self._agreement is None:
            first = [said for said, _ in self._said.values()]
            again = [said for _, said in self._said.values()]
            same = sum(one == other for one, other in zip(first, again, strict=True))
            self._agreement = _share(same, len(first)), cohen_kappa(first, again).value
        return self._agreement


def _what(judgement: Judgement) -> _Said:
    if judgement.verdict != "ranked":
        return judgement.verdict
    return tuple(tuple(sorted(group)) for group in judgement.ranking)


def _is_work(gap: float) -> bool:
    return 0 <= gap <= PAUSE  # the clock may have been set back


def _share(count: int, total: int) -> Share:
    return Share(count, total, count / total if total else math.nan, *wilson_interval(count, total))
