"""Scales that map a channel's numbers to positions from 0 to 1, robust against a few extreme values."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from workbench.run.sample_records import TokenSample
from workbench.samples.channels import Channel

_QUANTILE = 0.98
_LEAST_END = 0.01  # about the printed precision: a channel close to 0 is drawn as flat, not as noise
_FAR = 3.5  # robust z; Iglewicz and Hoaglin 1993
_NORMAL_MAD = 0.6745  # ratio of median absolute deviation to standard deviation of a normal distribution
_NORMAL_MEAN_AD = 0.7979  # and of its mean absolute deviation


@dataclass(frozen=True, slots=True)
class ChannelScale:
    """Scale from `low` to `high`: -q to q for a diverging channel, 0 to q for a magnitude.

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
        """Return the position of `value` from 0 to 1, clamped at the ends; NaN for NaN.

        The position never falls as `value` rises.
        """
        if not self.low < value < self.high:
            return math.nan if math.isnan(value) else float(value > self.low)
        return (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)  # halves, because the span may overflow


def channel_scale(values: Iterable[float], diverging: bool) -> ChannelScale:
    """Return the scale of a sample's or a batch's values. For a magnitude it starts at 0, which has a meaning."""
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
    """A channel of a sample: its numbers and their positions on a scale; both empty where the file lacks it."""

    channel: Channel
    values: Sequence[float]
    positions: Sequence[float]
    scale: ChannelScale


def read_channel(sample: TokenSample, channel: Channel, scale: ChannelScale | None = None) -> Reading:
    """Return the channel's numbers of all tokens, on `scale` or else on the sample's own."""
    values = channel.values(sample)
    scale = scale or channel_scale(values, channel.diverging)
    return Reading(channel, values, [scale.position(value) for value in values], scale)


def outliers(values: Iterable[float]) -> list[int]:
    """Return the indices of values that are far from the others (robust z over 3.5) or not finite, ascending.

    z is the distance from the median in median absolute deviations, or in mean ones where more than half of the values
    are equal.
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
