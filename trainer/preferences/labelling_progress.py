"""Progress of a labelling session: speed, biases and self-agreement, updated label by label."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice, pairwise, takewhile
from statistics import median

from trainer.confidence import wilson_interval
from trainer.preferences.agreement import cohen_kappa
from trainer.preferences.conversations import length_in_characters
from trainer.preferences.items import Progress, SessionItem, Share
from trainer.preferences.records import Judgement

PAUSE = 300.0  # seconds; a longer gap between two labels is a pause
_RECENT = 50  # newest labels, which the speed is measured on

First = Callable[[int], Judgement | None]
_Said = str | tuple[tuple[int, ...], ...]


class ProgressCounter:
    """Counter of a session's progress, updated as labels are made and undone.

    The cost of a label does not depend on how many there are, except for moving numbers within a sorted list, and for
    comparing the repeats: 1 ms for 500 of them.

    first: returns the judgement of a label by its id; None if it is undone. Repeats are compared with it. items: those
    with a label so far, in the order of labelling.
    """

    def __init__(self, first: First, items: Iterable[SessionItem] = ()) -> None:
        self._first = first
        self._done = 0
        self._times: dict[int, float] = {}  # by label, in the order of labelling
        self._streak = 0
        self._seconds: list[float] = []  # sorted
        self._left = Counter[bool]()  # whether the left completion was chosen
        self._longer = Counter[bool]()  # whether the longer one was
        self._repeats: dict[int, tuple[int, _Said, _Said]] = {}  # by repeating label: the first label, what both say
        for item in items:
            self.add(item)

    def add(self, item: SessionItem) -> None:
        """Count the label of `item`, the newest one."""
        assert item.label is not None
        label, judgement, repeats = item.label.id, item.label.judgement, item.item.repeats
        first = self._first(repeats) if repeats else None
        if first is not None and "skip" not in (first.verdict, judgement.verdict):
            self._repeats[label] = repeats, _what(first), _what(judgement)
        if judgement.time is not None:
            goes_on = self._times and _is_work(judgement.time, next(reversed(self._times.values())))
            self._streak = self._streak + 1 if goes_on else 1
            self._times[label] = judgement.time
        if judgement.seconds is not None:
            insort(self._seconds, judgement.seconds)
        self._count(item, 1)

    def remove(self, item: SessionItem) -> None:
        """Remove the label of `item`, which was counted before."""
        assert item.label is not None
        label, judgement = item.label.id, item.label.judgement
        if self._times.pop(label, None) is not None:
            unbroken = takewhile(lambda times: _is_work(*times), pairwise(reversed(self._times.values())))
            self._streak = sum(1 for _ in unbroken) + 1 if self._times else 0
        if judgement.seconds is not None:
            del self._seconds[bisect_left(self._seconds, judgement.seconds)]
        for repeat, (repeated, _, _) in list(self._repeats.items()):
            if label in (repeat, repeated):
                del self._repeats[repeat]
        self._count(item, -1)

    def progress(self, left: int | None) -> Progress:
        """Return the progress. left: number of items still to be judged; None if not known."""
        recent = pairwise(islice(reversed(self._times.values()), _RECENT))
        gaps = [later - earlier for later, earlier in recent if _is_work(later, earlier)]
        per_hour = 3600 * len(gaps) / total if (total := sum(gaps)) else math.nan  # NaN without two labels in a row
        firsts, again = [said for _, said, _ in self._repeats.values()], [said for *_, said in self._repeats.values()]
        return Progress(
            done=self._done,
            left=left,
            per_hour=per_hour,
            median_seconds=median(self._seconds) if self._seconds else math.nan,
            eta_seconds=math.nan if left is None else left / per_hour * 3600,
            streak=self._streak,
            left_side=_share(self._left),
            longer=_share(self._longer),
            same=_share(Counter(one == other for one, other in zip(firsts, again, strict=True))),
            kappa=cohen_kappa(firsts, again).value,
        )

    def _count(self, item: SessionItem, by: int) -> None:
        assert item.label is not None
        self._done += by
        if item.label.judgement.choice not in ("a", "b"):
            return  # neither is chosen, or there are more than two
        chosen = item.label.judgement.ranking[0][0]
        lengths = [length_in_characters(completion) for completion in item.item.comparison.completions]
        self._left[item.item.order[0] == chosen] += by
        if lengths[0] != lengths[1]:
            self._longer[lengths[chosen] == max(lengths)] += by


def _what(judgement: Judgement) -> _Said:
    if judgement.verdict != "ranked":
        return judgement.verdict
    return tuple(tuple(sorted(group)) for group in judgement.ranking)


def _is_work(later: float, earlier: float) -> bool:
    return 0 <= later - earlier <= PAUSE  # the clock may have been set back


def _share(counts: Counter[bool]) -> Share:
    count, total = counts[True], counts.total()
    return Share(count, total, count / total if total else math.nan, *wilson_interval(count, total))
