"""Channels, the numbers of a token that colour the text: their formats, and their scales from 0 to 1."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from workbench.run.samples import OUTLYING, TokenSample, robust_z
from workbench.samples.token_maths import exp

_LARGE = 1e5  # numbers from here on are written in scientific notation
_NEAREST = decimal.ROUND_HALF_EVEN
_QUANTILE = 0.98
_LEAST_END = 0.01  # about the printed precision: a channel close to 0 is drawn as flat, not as noise


def _same(value: float) -> float:
    return value


def _negative(value: float) -> float:
    return 0.0 - value  # so that 0 does not become -0


@dataclass(frozen=True, slots=True)
class Channel:
    """One number per token. The colours are drawn from `values`; the text shows `shown` of each value.

    values: T floats, some perhaps NaN or infinite; empty where the sample's file lacks one of `columns`.
    """

    name: str
    label: str
    unit: str
    diverging: bool  # around 0, else a magnitude from 0 up
    decimals: int
    columns: tuple[str, ...]  # of the samples file
    values: Callable[[TokenSample], Sequence[float]]
    help: str
    signed: bool = True  # written with its sign
    shown: Callable[[float], float] = _same  # monotone

    def number(self, value: float, *, bound: Literal["", "low", "high"] = "") -> str:
        """Format `value` without a unit.

        bound: with "low" the rounded number is not above `value` on the scale, with "high" not below it.
        """
        shown = self.shown(value)
        if not math.isfinite(shown):
            return "NaN" if math.isnan(shown) else f"{shown:{'+' if self.signed or shown < 0 else ''}}"
        falls = self.shown(1.0) < self.shown(0.0)
        rounding = _NEAREST
        if bound:
            rounding = decimal.ROUND_CEILING if (bound == "high") != falls else decimal.ROUND_FLOOR
        exact = decimal.Decimal(shown)
        sign = "+" if self.signed else ""
        if abs(shown) >= _LARGE:
            return f"{decimal.Context(prec=2, rounding=rounding).plus(exact):{sign}.1e}"
        rounded = exact.quantize(decimal.Decimal(1).scaleb(-self.decimals), rounding)
        return f"{rounded:{sign}.{self.decimals}f}" if rounded else f"{0:.{self.decimals}f}"

    def format(self, value: float) -> str:
        """Format `value` with its unit."""
        text = self.number(value)
        return f"{text} {self.unit}" if self.unit and math.isfinite(value) else text


def _kl(sample: TokenSample) -> Sequence[float]:
    mine, theirs = sample.numbers.get("logprobs", ()), sample.numbers.get("ref_logprobs", ())
    return [a - b for a, b in zip(mine, theirs, strict=True)] if mine and theirs else ()


def _surprisal(sample: TokenSample) -> Sequence[float]:
    return [-logprob for logprob in sample.numbers.get("logprobs", ())]


def _log_ratio(sample: TokenSample) -> Sequence[float]:
    if not any(sample.ratios):
        return ()
    last = (next((one for one in reversed(passes) if not math.isnan(one)), math.nan) for passes in sample.ratios)
    return [_log(ratio) for ratio in last]


def _log(ratio: float) -> float:
    if ratio > 0:
        return math.log(ratio)
    return -math.inf if ratio == 0 else math.nan


def _saved(
    name: str,
    label: str,
    column: str,
    help: str,
    *,
    unit: str = "",
    diverging: bool = True,
    decimals: int = 2,
    signed: bool = True,
) -> Channel:
    """Return the channel of a column of the samples file."""
    return Channel(
        name=name,
        label=label,
        unit=unit,
        diverging=diverging,
        decimals=decimals,
        columns=(column,),
        values=lambda sample: sample.numbers.get(column, ()),
        help=help,
        signed=signed,
    )


_CHANNELS = (
    Channel(
        name="kl",
        label="KL",
        unit="nats",
        diverging=True,
        decimals=2,
        columns=("logprobs", "ref_logprobs"),
        values=_kl,
        help="log-prob under the policy minus log-prob under the reference (k1); above 0 the policy prefers the token.",
    ),
    _saved(
        "advantage",
        "advantage",
        "advantages",
        "how much better the token did than the critic, or a baseline, expected; the update pushes it that way.",
    ),
    _saved(
        "value",
        "value",
        "values",
        "the reward that the critic expected from here on, just before the token; only with a critic.",
    ),
    _saved(
        "reward",
        "reward",
        "rewards",
        "reward of the token: minus the KL penalty if the reward includes it, plus the score on the last token.",
        decimals=3,
    ),
    _saved(
        "return",
        "return",
        "returns",
        "advantage plus value, the critic's target; without a critic, the rewards from the token on.",
    ),
    _saved(
        "td_error",
        "TD error",
        "td_errors",
        "reward plus the discounted value after the token, minus the value before it.",
    ),
    Channel(
        name="ratio",
        label="ratio",
        unit="",
        diverging=True,
        decimals=2,
        columns=("ratios",),
        values=_log_ratio,
        help="how many times likelier the update made the token, at its last measured pass; 1 is unchanged.",
        signed=False,
        shown=exp,
    ),
    Channel(
        name="logprob",
        label="log-prob",
        unit="nats",
        diverging=False,
        decimals=2,
        columns=("logprobs",),
        values=_surprisal,
        help="log-prob under the policy that wrote the token; a stronger colour is more surprising.",
        signed=False,
        shown=_negative,
    ),
    _saved(
        "entropy",
        "entropy",
        "entropy",
        "how undecided the policy was about the token.",
        unit="nats",
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
