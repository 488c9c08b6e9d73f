"""From a channel's numbers to places on a scale that a few far ones do not flatten."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from workbench.run.sample_records import TokenSample
from workbench.samples.channels import Channel

_QUANTILE = 0.98
_LEAST_END = 0.01  # about what is printed: a channel that hardly differs from 0 is drawn as flat, not as noise
_FAR = 3.5  # robust z; Iglewicz and Hoaglin 1993
_NORMAL_MAD = 0.6745  # of a normal distribution's median absolute deviation to its standard deviation
_NORMAL_MEAN_AD = 0.7979  # and of its mean absolute deviation


@dataclass(frozen=True, slots=True)
class ChannelScale:
    """Places between `low` and `high`, which are -q and q of a diverging channel, 0 and q of a magnitude.

    q is the 98th percentile (nearest rank) of the finite values' magnitudes, and at least 0.01.
    """

    low: float
    high: float
    least: float  # of the finite values; NaN where there are none
    greatest: float
    missing: int  # values that are NaN

    @property
    def diverging(self) -> bool:
        """Whether its middle is zero."""
        return self.low < 0

    def position(self, value: float) -> float:
        """Where `value` is, from 0 to 1, at the end that it lies beyond; NaN for NaN. Never falls as `value` rises."""
        if not self.low < value < self.high:
            return math.nan if math.isnan(value) else float(value > self.low)
        return (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)  # halves, for the span may overflow


def channel_scale(values: Iterable[float], diverging: bool) -> ChannelScale:
    """The scale of a sample's values, or of a batch's. A magnitude's starts at 0, which says something itself."""
    values = list(values)
    finite = [value for value in values if math.isfinite(value)]
    sizes = sorted(map(abs, finite))
    rank = math.ceil(_QUANTILE * len(sizes))
    high = max(sizes[rank - 1] if sizes else 0.0, _LEAST_END)
    return ChannelScale(
        low=-high if diverging else 0.0,
        high=high,
        least=min(finite, default=math.nan),
        greatest=max(finite, default=math.nan),
        missing=sum(map(math.isnan, values)),
    )


class Reading(NamedTuple):
    """A channel of a sample: its numbers and their places on a scale; both empty where the file does not have it."""

    channel: Channel
    values: Sequence[float]
    positions: Sequence[float]
    scale: ChannelScale


def read_channel(sample: TokenSample, channel: Channel, scale: ChannelScale | None = None) -> Reading:
    """The channel of every token, on `scale` or else on the sample's own."""
    values = channel.values(sample)
    scale = scale or channel_scale(values, channel.diverging)
    return Reading(channel, values, [scale.position(value) for value in values], scale)


def outliers(values: Iterable[float]) -> list[int]:
    """Places of values that lie far from the others (robust z over 3.5) or are not finite, ascending.

    z is the distance from the median in median absolute deviations; in mean ones where more than half are equal.
    """
    values = list(values)
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0) or 1.0
    scaled = [value / largest for value in values]  # so that no difference overflows
    finite = [value for value in scaled if math.isfinite(value)]
    if not finite:
        return list(range(len(values)))
    middle = statistics.median(finite)
    distances = [abs(value - middle) for value in finite]
    unit = statistics.median(distances) / _NORMAL_MAD or statistics.fmean(distances) / _NORMAL_MEAN_AD
    return [place for place, value in enumerate(scaled) if not abs(value - middle) <= _FAR * unit]
