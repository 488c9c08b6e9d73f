"""Axes of charts: the part of a history that they show, ranges that one spike does not flatten, and round ticks."""

from __future__ import annotations

import math
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from workbench.kit.glyphs import row_of
from workbench.run.history import Bucket, MetricHistory
from workbench.run.metrics import Metric
from workbench.text import number

_LARGEST = sys.float_info.max
_DECAY = 0.9


class Window(NamedTuple):
    """Positions from `start` to before `stop` of a history, drawn on an axis from iteration `first` to `last`."""

    history: MetricHistory
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

    def beside(self, other: MetricHistory) -> Window:
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
        if metric.factor == 1:
            return buckets
        scaled = []
        for bucket in buckets:
            values = [value * metric.factor for value in (bucket.low, bucket.high, bucket.mean, bucket.last)]
            low, high, mean, last = (value if math.isnan(value) else within_floats(value) for value in values)
            scaled.append(bucket._replace(low=low, high=high, mean=mean, last=last))
        return scaled


def window_of(history: MetricHistory, span: int | None = None, at: int | None = None) -> Window:
    """Return the newest `span` iterations of `history`, or those around the position `at`; all without a span."""
    size = len(history)
    span = size if span is None else min(span, size)
    start = size - span if at is None else min(max(at - span // 2, 0), size - span)
    if not span:
        return Window(history, 0, 0, 0, 0)
    return Window(history, start, start + span, history.numbers[start], history.numbers[start + span - 1])


def window_over(histories: Sequence[MetricHistory]) -> Window:
    """Return all of the first history, on an axis that covers every history."""
    window = window_of(histories[0])
    ends = [(history.numbers[0], history.numbers[-1]) for history in histories if len(history)]
    if not ends:
        return window
    return window._replace(first=min(first for first, _ in ends), last=max(last for _, last in ends))


def moving_average(buckets: Iterable[Bucket | None], decay: float = _DECAY) -> list[float]:
    """Return the exponential moving average after each bucket, started at the first value; NaN where it has none.

        m_t = d m_{t-1} + (1 - d) x_t,   shown as m_t / (1 - d^t),   d: the decay per iteration

    A bucket of n values counts as n times its mean.
    """
    averages = []
    average = weight = 0.0
    for bucket in buckets:
        count = bucket.last_index - bucket.first_index + 1 - bucket.missing if bucket else 0
        if bucket is None or not count:
            averages.append(float("nan"))
            continue
        kept = decay**count
        weight = kept * weight + 1 - kept
        gain = (1 - kept) / weight
        average = within_floats(average * (1 - gain) + bucket.mean * gain)
        averages.append(average)
    return averages


def within_floats(value: float) -> float:
    """Return `value`, or the largest float of its sign if it is infinite."""
    return min(max(value, -_LARGEST), _LARGEST)


_TRIMMED = 0.02  # share of the columns at either end that cannot stretch a range on their own
_FEW = 8  # columns: with fewer, none counts as a spike
_MARGIN = 0.5  # of the trimmed range: values within it are not spikes
_FLAT = 0.05  # of the values' size: smaller differences are drawn as nearly flat
_LEAST_LOG_SPAN = math.log10(2)
_ROUND = (1, 2, 5, 10)
_LINES_A_TICK = 3
_CROWDED = 0.7  # of the wanted distance: ticks may be that close


class Axis(NamedTuple):
    """An axis from `low` to `high`; on a logarithmic one these are powers of ten."""

    low: float
    high: float
    log: bool = False

    def position(self, value: float) -> float:
        """Return the position of `value`, from 0 to 1; the nearer end if it is outside, NaN if it is not finite."""
        if not math.isfinite(value):
            return math.nan
        if self.log:
            if value <= 0:
                return 0.0
            value = math.log10(value)
        low, high = self.low, self.high
        if not math.isfinite(high - low):
            value, low, high = value / 4, low / 4, high / 4
        if high <= low:
            return 0.5
        return min(max((value - low) / (high - low), 0.0), 1.0)

    def holds(self, value: float) -> bool:
        """Return whether `value` lies on the axis."""
        if self.log:
            return value > 0 and self.low <= math.log10(value) <= self.high
        return self.low <= value <= self.high


def scale_of(ranges: Iterable[tuple[float, float]], metric: Metric, *, log: bool = False) -> Axis:
    """Return the axis for values with these ranges, from least to greatest; some may be NaN.

    It is the metric's fixed range, or the range of the values without their spikes. It includes the threshold unless
    that would more than double it. log: ask for a logarithmic axis. A metric without a positive value, or that such
    an axis does not suit, stays linear.
    """
    ranges = [(low, high) for low, high in ranges if math.isfinite(low) and math.isfinite(high)]
    if log and metric.log:
        powers = [(math.log10(low if low > 0 else high), math.log10(high)) for low, high in ranges if high > 0]
        if powers:
            low, high = _robust(powers, _LEAST_LOG_SPAN)
            return Axis(*_with(math.log10(metric.threshold) if metric.threshold else None, low, high), log=True)
    if not ranges:
        low = metric.low or 0.0
        return Axis(low, low + (metric.least_span or 1.0) if metric.high is None else metric.high)
    low, high = _robust(ranges, metric.least_span)
    if metric.low is not None:
        low = metric.low
        high = max(high, low + metric.least_span)
    return Axis(*_with(metric.threshold, low, high if metric.high is None else metric.high))


def ticks(scale: Axis, count: int) -> list[float]:
    """Return about `count` round values on the axis, ascending; both ends if fewer than two are round."""
    if scale.log:  # powers of ten, with 2 and 5 times them if there are few
        lowest, highest = math.floor(scale.low), min(math.floor(scale.high), 308)
        factors = _ROUND[:3] if highest - lowest < 3 else _ROUND[:1]
        stride = max(-(-(highest - lowest) // max(count, 1)), 1)
        powers = [10.0**power for power in range(lowest, highest + 1, stride)]
        values = [power * factor for power in powers for factor in factors if scale.holds(power * factor)]
        return values if len(values) > 1 else [10.0 ** min(end, 308) for end in (scale.low, scale.high)]
    ends = [scale.low, scale.high] if scale.high > scale.low else [scale.low]
    span = scale.high - scale.low
    if not 0 < span < math.inf or max(abs(scale.low), abs(scale.high)) > 1e6 * span:
        return ends
    rough = span / max(count, 1)
    unit = 10.0 ** math.floor(math.log10(rough)) if rough else 0.0
    if not unit:
        return ends  # smaller than any power of ten
    step = next(unit * factor for factor in _ROUND if unit * factor >= _CROWDED * rough)
    if not math.isfinite(step):
        return ends
    first, last = math.ceil(scale.low / step - 1e-9), math.floor(scale.high / step + 1e-9)
    values = [within_floats(multiple * step) for multiple in range(first, last + 1)]
    return values if len(values) > 1 else ends


def tick_texts(values: Sequence[float], *, log: bool = False) -> list[str]:
    """Format the values with as many digits as the longest needs; on a logarithmic axis, each with its own."""
    short = [f"{value:.{3 if log else 4}g}" for value in values]
    if log:
        return short
    if any("e" in text for text in short):
        return [f"{value:.1e}" if value else "0" for value in values]
    digits = max((len(text.partition(".")[2]) for text in short), default=0)
    return [f"{value:.{digits}f}" for value in values]


def tick_rows(scale: Axis, height: int) -> dict[int, str]:
    """Return the numbers beside a plot of `height` lines, keyed by line."""
    values = ticks(scale, max(height // _LINES_A_TICK, 3 if scale.log else 2))
    if values[:1] == [scale.low] and len(values) <= 2:  # the ends, which are not round
        span = values[-1] - values[0]
        digits = 1 - math.floor(math.log10(span)) if 1e-6 < span < 1e6 and not scale.log else 9
        values = [round(value, digits) for value in values]
    texts = tick_texts(values, log=scale.log)
    return {row_of(scale.position(value), height): text for value, text in zip(values, texts, strict=True)}


def number_text(value: float, digits: int, width: int) -> str:
    """Format `value` as `numbers.number` does, but NaN and infinity by name: in a chart they are a finding."""
    if math.isfinite(value):
        return number(value, digits, width=width)
    return "NaN" if math.isnan(value) else f"{value:+}"


def _robust(ranges: Sequence[tuple[float, float]], least: float) -> tuple[float, float]:
    """Return the range of `ranges` without far outliers, but at least `least` long."""
    lows, highs = sorted(low for low, _ in ranges), sorted(high for _, high in ranges)
    trimmed = max(math.ceil(_TRIMMED * len(ranges)), 1) if len(ranges) >= _FEW else 0
    low, high = lows[trimmed], highs[-1 - trimmed]
    least = max(least, _FLAT * max(abs(low), abs(high)))
    margin = _MARGIN * max(within_floats(high - low), least)
    low, high = max(lows[0], within_floats(low - margin)), min(highs[-1], within_floats(high + margin))
    if (short := least - within_floats(high - low)) > 0:
        low, high = within_floats(low - short / 2), within_floats(high + short / 2)
    return low, high


def _with(threshold: float | None, low: float, high: float) -> tuple[float, float]:
    """Extend the range to the threshold, unless that is further away than the range is long."""
    reach = within_floats(high - low)
    if threshold is None or not low - reach <= threshold <= high + reach:
        return low, high
    return min(low, threshold), max(high, threshold)
