"""The metrics of a run's iterations as columns of numbers, and summaries of them at the width of a screen.

A number costs 8 bytes, and 6 more once its column has been drawn.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import fields
from itertools import count, pairwise
from operator import attrgetter
from typing import NamedTuple

from trainer.events import DPOStep, Evaluation, Event, Iteration, RewardModelStep
from trainer.runs.listing import PPO
from workbench.run.kinds import DPO, REWARD_MODEL
from workbench.run.metrics import Numbers

_EVENTS: dict[str, type[Event]] = {PPO: Iteration, REWARD_MODEL: RewardModelStep, DPO: DPOStep}
_KINDS = {event: kind for kind, event in _EVENTS.items()}
_NO_METRICS = ("iteration", "seconds")
_PHASES = ("generate", "score", "reward", "update")
_EVALUATED = ("score_mean", "win_rate", "best_of_score", "explained_variance")
_FACTOR = 8  # cells of a level that make one of the next


class Bucket(NamedTuple):
    """A summary of neighbouring values. Only finite ones count; low to last are NaN if there are none."""

    low: float
    high: float
    mean: float
    last: float
    first_index: int
    last_index: int  # included
    missing: int  # how many of them are NaN or infinite


def kind_of(event: Numbers) -> str:
    """Return the kind of run that reports its numbers by such events."""
    return _KINDS[type(event)]


def _scalars(event: type[Event]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(event) if f.type in ("int", "float") and f.name not in _NO_METRICS)


class History:
    """Iterations by ascending number, with a column for each metric: the scalar fields of the events, and seconds.

    The columns of seconds are `seconds_total` and, for PPO, one for each phase, such as `seconds_generate`; NaN for a
    phase that did not run. PPO also has columns of evaluations, such as `eval/win_rate`: the result of the newest
    evaluation by then, NaN before the first. `names` lists the columns. kind: the kind of run; an unknown kind has the
    columns of PPO.
    """

    def __init__(self, kind: str = PPO) -> None:
        self.kind = kind if kind in _EVENTS else PPO
        scalars = _scalars(_EVENTS[self.kind])
        phases = _PHASES if self.kind == PPO else ()
        seconds = ("seconds_total", *(f"seconds_{phase}" for phase in phases))
        self._evaluated = {f"eval/{name}": math.nan for name in _EVALUATED} if self.kind == PPO else {}
        self.names: tuple[str, ...] = (*scalars, *seconds, *self._evaluated)
        self._scalars_of = attrgetter(*scalars)
        self.numbers = array("q")
        self._columns = {name: array("d") for name in self.names}
        self._in_order = tuple(self._columns.values())
        self._summaries: dict[str, Pyramid] = {}  # of the columns that were asked for in buckets
        self._prepended = 0

    def __len__(self) -> int:
        return len(self.numbers)

    def append(self, event: Numbers) -> None:
        """Add an iteration of this kind of run. It replaces all iterations with its number or a higher one."""
        if self.numbers and event.iteration <= self.numbers[-1]:
            self.cut(event.iteration - 1)
        self.numbers.append(event.iteration)
        values = [*self._scalars_of(event)]
        if isinstance(event, Iteration):
            seconds = event.seconds
            values += [sum(seconds.values()), *(seconds.get(phase, math.nan) for phase in _PHASES)]
        else:
            values.append(event.seconds)
        values += self._evaluated.values()
        for column, value in zip(self._in_order, values, strict=True):
            column.append(value)

    def evaluate(self, event: Evaluation) -> None:
        """Store the results of `event` for its iteration and all later ones; only PPO has such columns."""
        start = bisect_left(self.numbers, event.iteration)
        for name in self._evaluated:
            value = getattr(event, name.removeprefix("eval/"))
            self._evaluated[name] = value
            if start < len(self):
                self._columns[name][start:] = array("d", [value]) * (len(self) - start)
                self._summaries.pop(name, None)

    def prepend(self, earlier: History) -> None:
        """Insert the iterations of `earlier` that come before the first one of this history.

        Those of another kind of run are left out.
        """
        if earlier.kind != self.kind:
            return
        size = bisect_left(earlier.numbers, self.numbers[0]) if self.numbers else len(earlier)
        self.numbers[:0] = earlier.numbers[:size]
        for column, older in zip(self._in_order, earlier._in_order, strict=True):
            column[:0] = older[:size]
        self._prepended += size

    def cut(self, last: int) -> None:
        """Drop the iterations above `last`."""
        size = bisect_right(self.numbers, last)
        if size == len(self.numbers):
            return
        del self.numbers[size:]
        for column in self._in_order:
            del column[size:]
        self._evaluated = {name: self._columns[name][-1] if size else math.nan for name in self._evaluated}
        self._summaries.clear()

    def column(self, name: str) -> Sequence[float]:
        """Return all values of the metric `name`: the column itself, which grows. Raises KeyError if unknown."""
        return self._columns[name]

    def buckets(self, name: str, width: int, start: int = 0, stop: int | None = None) -> list[Bucket]:
        """Return the values of `name` at positions `start` to before `stop`, in `width` buckets of nearly equal size.

        If there are fewer values than `width`, each has a bucket. The cost is `width` times the logarithm of a
        bucket's size, and once the number of values that were added to the column since the last call.
        """
        column = self._columns[name]
        start, stop, _ = slice(start, stop).indices(len(self))
        size = max(stop - start, 0)
        width = min(max(width, 0), size)
        summary = self._summaries.setdefault(name, Pyramid())
        summary.follow(column, self._prepended)
        edges = [start + i * size // width for i in range(width + 1)] if width else []
        return [summary.bucket(first, end) for first, end in pairwise(edges)]

    def range_of(self, name: str) -> tuple[float, float]:
        """Return the least and the greatest finite value of `name`; NaN if there is none."""
        buckets = self.buckets(name, 1)
        return (buckets[0].low, buckets[0].high) if buckets else (math.nan, math.nan)

    def index_of(self, iteration: int) -> int:
        """Return the position of the iteration whose number is nearest to `iteration`; 0 in an empty history."""
        after = min(bisect_left(self.numbers, iteration), len(self) - 1)
        if after > 0 and iteration - self.numbers[after - 1] <= self.numbers[after] - iteration:
            return after - 1
        return max(after, 0)


class Cells(NamedTuple):
    """Summaries of values, or of groups of values, in columns. Only finite values count."""

    lows: Sequence[float]  # infinite where none is finite
    highs: Sequence[float]  # the same, negative
    totals: Sequence[float]
    lasts: Sequence[float]  # NaN where none is finite
    sizes: Sequence[float]  # how many are finite


class Stretch(NamedTuple):
    """Cells of one level, from `start` to before `stop`; those of level 0 are the values."""

    level: int
    start: int
    stop: int


class Pyramid:
    """Summaries of a column that grows at both ends: a cell of level k summarises 8^k values.

    Values are numbered from the one that came first; those in front of it count down from -1. So a cell keeps its
    place, and is made once, when all its values are there.
    """

    def __init__(self) -> None:
        self._values = array("d")
        self._prepended = 0
        self._levels: list[_Level] = []

    def follow(self, values: array[float], prepended: int) -> None:
        """Summarise what was added to `values`; its first `prepended` ones were put in front."""
        self._values, self._prepended = values, prepended
        start, stop = -prepended, len(values) - prepended
        for number in count():
            start, stop = -(-start // _FACTOR), stop // _FACTOR
            if start >= stop:
                break
            if number == len(self._levels):
                self._levels.append(_Level(start))
            level = self._levels[number]
            if start < level.start:
                level.prepend(self._grouped(number, start, level.start))
            if level.stop < stop:
                level.append(self._grouped(number, level.stop, stop))

    def bucket(self, first: int, end: int) -> Bucket:
        """Return the summary of positions `first` to before `end` of the column, at least one."""
        parts = [_summary(self._read(*stretch)) for stretch in self.stretches(first, end)]
        low, high, total, last, size = _summary(Cells(*zip(*parts, strict=True)))
        missing = end - first - int(size)
        if not size:
            return Bucket(math.nan, math.nan, math.nan, math.nan, first, end - 1, missing)
        mean = total / size
        if not math.isfinite(mean):
            mean = low / 2 + high / 2  # the sum has overflowed
        mean = min(max(mean, low), high)  # rounding can move it outside
        return Bucket(low, high, mean, last, first, end - 1, missing)

    def stretches(self, first: int, end: int) -> list[Stretch]:
        """Return the fewest cells that cover positions `first` to before `end`, in order.

        That is at most 7 a level at either end, and up to 14 of the highest level.
        """
        start, stop = first - self._prepended, end - self._prepended
        before: list[Stretch] = []
        after: list[Stretch] = []
        for level in count():
            inner_start, inner_stop = -(-start // _FACTOR), stop // _FACTOR
            if inner_start >= inner_stop:
                break
            before.append(Stretch(level, start, inner_start * _FACTOR))
            after.append(Stretch(level, inner_stop * _FACTOR, stop))
            start, stop = inner_start, inner_stop
        found = [*before, Stretch(level, start, stop), *reversed(after)]
        return [stretch for stretch in found if stretch.start < stretch.stop]

    def _grouped(self, level: int, start: int, stop: int) -> Cells:
        """Make the cells from `start` to before `stop` of the next level from those of `level`."""
        cells = self._read(level, start * _FACTOR, stop * _FACTOR)
        # The members of groups side by side, so that map and zip loop over the groups, in C.
        lows, highs, totals, lasts, sizes = ([column[i::_FACTOR] for i in range(_FACTOR)] for column in cells)
        return Cells(
            array("d", map(min, *lows)),
            array("d", map(max, *highs)),
            array("d", map(sum, zip(*totals, strict=True))),
            array("d", map(_last, zip(*lasts, strict=True))),
            array("d", map(sum, zip(*sizes, strict=True))),
        )

    def _read(self, level: int, start: int, stop: int) -> Cells:
        if level:
            return self._levels[level - 1].read(start, stop)
        values = self._values[start + self._prepended : stop + self._prepended]
        if math.isfinite(sum(values)):  # then all of them are
            return Cells(values, values, values, values, array("d", [1.0]) * len(values))
        finite = [math.isfinite(value) for value in values]
        lows, highs, totals, lasts = (
            [value if is_finite else none for value, is_finite in zip(values, finite, strict=True)]
            for none in (math.inf, -math.inf, 0.0, math.nan)
        )
        return Cells(lows, highs, totals, lasts, finite)


class _Level:
    """The cells of one level; the first is number `start`."""

    def __init__(self, start: int) -> None:
        self.start = start
        self._columns = tuple(array("d") for _ in Cells._fields)

    @property
    def stop(self) -> int:
        return self.start + len(self._columns[0])

    def append(self, cells: Cells) -> None:
        for column, added in zip(self._columns, cells, strict=True):
            column.extend(added)

    def prepend(self, cells: Cells) -> None:
        self.start -= len(cells.lows)
        for column, added in zip(self._columns, cells, strict=True):
            column[:0] = array("d", added)

    def read(self, start: int, stop: int) -> Cells:
        return Cells(*(column[start - self.start : stop - self.start] for column in self._columns))


def _summary(cells: Cells) -> tuple[float, float, float, float, float]:
    """Summarise all of `cells` as one."""
    return min(cells.lows), max(cells.highs), sum(cells.totals), _last(cells.lasts), sum(cells.sizes)


def _last(values: Sequence[float]) -> float:
    """Return the last of `values` that is not NaN, else NaN."""
    if values[-1] == values[-1]:
        return values[-1]
    return next((value for value in reversed(values) if value == value), math.nan)
