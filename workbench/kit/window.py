"""The part of a history that the charts show, and its values as the columns of a chart."""

from __future__ import annotations

import math
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from workbench.run.history import Bucket, History
from workbench.run.metrics import Metric

_LARGEST = sys.float_info.max
_DECAY = 0.9  # of the moving average, per iteration


class Window(NamedTuple):
    """Positions from `start` to before `stop` of a history, drawn on an axis from iteration `first` to `last`."""

    history: History
    start: int
    stop: int
    first: int
    last: int

    @property
    def iterations(self) -> int:
        """Number of iterations on the axis, including those that the history lacks."""
        return self.last - self.first + 1 if self.stop > self.start else 0

    def column_of(self, iteration: int, width: int) -> int:
        """Return which of `width` equal parts of the axis contains `iteration`, the same as for its bucket."""
        at = (iteration - self.first + 1) * width - 1
        return min(max(at // max(self.iterations, 1), 0), max(width - 1, 0))

    def iteration_in(self, column: int, width: int) -> int:
        """Return the first iteration of a column; `column_of` maps it back to `column`."""
        return self.first + column * self.iterations // max(width, 1)

    def columns(self, metric: Metric, width: int) -> list[Bucket | None]:
        """Return the values of `metric` in at most `width` columns, one for each iteration if there is room.

        A column is None if the history lacks its iterations, or if there was no evaluation before it. Reads `width`
        buckets, however long the history is.
        """
        width = min(width, self.iterations)
        columns: list[Bucket | None] = [None] * width
        numbers = self.history.numbers
        for bucket in self._buckets(metric, width):
            first, last = numbers[bucket.first_index], numbers[bucket.last_index]
            start, end = self.column_of(first, width), self.column_of(last, width)
            gap = last - first > bucket.last_index - bucket.first_index
            for column in (start, end) if gap else range(start, end + 1):
                columns[column] = bucket
        return columns

    def points(self, metric: Metric, width: int) -> list[tuple[int, Bucket]]:
        """Return the values of `metric` as at most `width` points at places 0..width-1, ascending."""
        numbers = self.history.numbers
        return [
            (self.place_of((numbers[bucket.first_index] + numbers[bucket.last_index]) / 2, width), bucket)
            for bucket in self._buckets(metric, width)
        ]

    def place_of(self, iteration: float, width: int) -> int:
        """Return the nearest of `width` places from the first iteration to the last; the middle of a single one."""
        if self.last <= self.first:
            return (width - 1) // 2
        return min(max(round((iteration - self.first) / (self.last - self.first) * (width - 1)), 0), width - 1)

    def iteration_at(self, place: int, width: int) -> int:
        """Return the iteration that is nearest to one of `width` places from the first to the last."""
        return self.first + round(place / max(width - 1, 1) * (self.last - self.first))

    def beside(self, other: History) -> Window:
        """Return the iterations of another history on this window's axis."""
        return self._replace(
            history=other, start=bisect_left(other.numbers, self.first), stop=bisect_right(other.numbers, self.last)
        )

    def _buckets(self, metric: Metric, width: int) -> list[Bucket]:
        if self.stop <= self.start or width < 1:
            return []
        buckets = self.history.buckets(metric.field, width, self.start, self.stop)
        if metric.evaluated:
            buckets = [bucket._replace(missing=0) for bucket in buckets if not math.isnan(bucket.last)]
        return buckets if metric.factor == 1 else [_scaled(bucket, metric.factor) for bucket in buckets]


def window_of(history: History, span: int | None = None, at: int | None = None) -> Window:
    """Return the newest `span` iterations of `history`, or those around the position `at`; all without a span."""
    size = len(history)
    span = size if span is None else min(span, size)
    start = size - span if at is None else min(max(at - span // 2, 0), size - span)
    return _window(history, start, start + span)


def window_over(histories: Sequence[History]) -> Window:
    """Return all of the first history, on an axis that covers every history."""
    window = _window(histories[0], 0, len(histories[0]))
    ends = [(history.numbers[0], history.numbers[-1]) for history in histories if len(history)]
    if not ends:
        return window
    return window._replace(first=min(first for first, _ in ends), last=max(last for _, last in ends))


def moving_average(buckets: Iterable[Bucket | None]) -> list[float]:
    """Return the exponential moving average after each bucket, started at the first value; NaN where it has none.

        m_t = d m_{t-1} + (1 - d) x_t,   shown as m_t / (1 - d^t),   d = 0.9 per iteration

    A bucket of n values counts as n times its mean.
    """
    averages = []
    average = weight = 0.0
    for bucket in buckets:
        count = bucket.last_index - bucket.first_index + 1 - bucket.missing if bucket else 0
        if bucket is None or not count:
            averages.append(float("nan"))
            continue
        kept = _DECAY**count
        weight = kept * weight + 1 - kept
        gain = (1 - kept) / weight
        average = within_floats(average * (1 - gain) + bucket.mean * gain)
        averages.append(average)
    return averages


def within_floats(value: float) -> float:
    """Return `value`, or the largest float of its sign if it is infinite."""
    return min(max(value, -_LARGEST), _LARGEST)


def _window(history: History, start: int, stop: int) -> Window:
    if stop <= start:
        return Window(history, 0, 0, 0, 0)
    return Window(history, start, stop, history.numbers[start], history.numbers[stop - 1])


def _scaled(bucket: Bucket, factor: float) -> Bucket:
    low, high, mean, last = (
        within_floats(value * factor) if value == value else value  # NaN stays
        for value in (bucket.low, bucket.high, bucket.mean, bucket.last)
    )
    return bucket._replace(low=low, high=high, mean=mean, last=last)
