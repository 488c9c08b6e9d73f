"""Channels, the numbers of a token that colour the text: their formats, and their scales from 0 to 1."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from workbench.run.sample_table import OUTLYING, TokenSample, robust_z
from workbench.samples.token_facts import exp

_LARGE = 1e5  # numbers from here on are written in scientific notation
_QUANTILE = 0.98
_LEAST_END = 0.01  # about the printed precision: a channel close to 0 is drawn as flat, not as noise


@dataclass(frozen=True, slots=True)
class Channel:
    """One number per token. The colours are drawn from `values`; the text shows `shown` of each value."""

    name: str
    label: str
    columns: tuple[str, ...]  # of the samples file
    help: str
    diverging: bool = True  # around 0, else a magnitude from 0 up
    decimals: int = 2
    signed: bool = True  # written with its sign
    computed: Callable[[TokenSample], Sequence[float]] | None = None  # from `columns`; None: the first as it is
    shown: Callable[[float], float] = float  # monotone

    def values(self, sample: TokenSample) -> Sequence[float]:
        """Return T floats, some perhaps NaN or infinite; empty where the sample's file lacks one of `columns`."""
        return self.computed(sample) if self.computed else sample.numbers.get(self.columns[0], ())

    def number(self, value: float) -> str:
        """Format `value`."""
        shown, sign = self.shown(value), "+" if self.signed else ""
        if not math.isfinite(shown):
            return "NaN" if math.isnan(shown) else f"{shown:{sign}}"
        text = f"{shown:{sign}.1e}" if abs(shown) >= _LARGE else f"{shown:{sign}.{self.decimals}f}"
        return text if text.strip("+-0.") else text.lstrip("+-")


def _log_ratio(sample: TokenSample) -> Sequence[float]:
    if not any(sample.ratios):
        return ()
    last = (next((one for one in reversed(passes) if not math.isnan(one)), math.nan) for passes in sample.ratios)
    return [math.log(ratio) if ratio > 0 else -math.inf if ratio == 0 else math.nan for ratio in last]


_CHANNELS = (
    Channel(
        "kl",
        "KL",
        ("logprobs", "ref_logprobs"),
        "log-prob under the policy minus log-prob under the reference (k1); above 0 the policy prefers the token.",
        computed=lambda sample: sample.token_kl,
    ),
    Channel(
        "advantage",
        "advantage",
        ("advantages",),
        "how much better the token did than the critic, or a baseline, expected; the update pushes it that way.",
    ),
    Channel(
        "value",
        "value",
        ("values",),
        "the reward that the critic expected from here on, just before the token; only with a critic.",
    ),
    Channel(
        "reward",
        "reward",
        ("rewards",),
        "reward of the token: minus the KL penalty if the reward includes it, plus the score on the last token.",
        decimals=3,
    ),
    Channel(
        "return",
        "return",
        ("returns",),
        "advantage plus value, the critic's target; without a critic, the rewards from the token on.",
    ),
    Channel(
        "td_error",
        "TD error",
        ("td_errors",),
        "reward plus the discounted value after the token, minus the value before it.",
    ),
    Channel(
        "ratio",
        "ratio",
        ("ratios",),
        "how much likelier the update made this token (last measured epoch); 1 = no change.",
        signed=False,
        computed=_log_ratio,
        shown=exp,
    ),
    Channel(
        "logprob",
        "log-prob",
        ("logprobs",),
        "log-prob under the policy that wrote the token; a stronger colour is more surprising.",
        diverging=False,
        signed=False,
        computed=lambda sample: [-logprob for logprob in sample.numbers.get("logprobs", ())],
        shown=operator.neg,
    ),
    Channel(
        "entropy",
        "entropy",
        ("entropy",),
        "how undecided the policy was about the token.",
        diverging=False,
        signed=False,
    ),
)

CHANNELS = {channel.name: channel for channel in _CHANNELS}


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


class ChannelValues(NamedTuple):
    """A channel of a sample: its numbers and their positions on a scale; both empty where the file lacks it."""

    channel: Channel
    numbers: Sequence[float]
    positions: Sequence[float]
    scale: ChannelScale


def read_channel(sample: TokenSample, channel: Channel, scale: ChannelScale | None = None) -> ChannelValues:
    """Return the channel's numbers of all tokens, on `scale` or else on the sample's own."""
    values = channel.values(sample)
    scale = scale or channel_scale(values, channel.diverging)
    return ChannelValues(channel, values, [scale.position(value) for value in values], scale)


def outliers(values: Sequence[float]) -> list[int]:
    """Return the indices of values that are far from the others (robust z over 3.5) or not finite, ascending."""
    import numpy as np

    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0) or 1.0
    scaled = np.array(values, dtype=np.float64) / largest  # so that no difference overflows
    far = ~(np.abs(robust_z(scaled, np.zeros(len(scaled), dtype=np.int64))) <= OUTLYING)
    return [int(place) for place in np.flatnonzero(far)]
