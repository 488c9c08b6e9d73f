"""Channels: the numbers of a token that colour the text, and the format of each."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from workbench.run.sample_records import TokenSample

_LARGE = 1e5  # numbers from here on are written in scientific notation
_NEAREST = decimal.ROUND_HALF_EVEN


def _same(value: float) -> float:
    return value


def _negative(value: float) -> float:
    return 0.0 - value  # so that 0 does not become -0


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


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


def _column(name: str) -> Callable[[TokenSample], Sequence[float]]:
    return lambda sample: sample.numbers.get(name, ())


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


_CHANNELS = (
    Channel(
        "kl",
        "KL",
        "nats",
        diverging=True,
        decimals=2,
        columns=("logprobs", "ref_logprobs"),
        values=_kl,
        help="the policy's log-prob of the token minus the reference's (k1): above 0 the policy likes it more.",
    ),
    Channel(
        "advantage",
        "advantage",
        "",
        diverging=True,
        decimals=2,
        columns=("advantages",),
        values=_column("advantages"),
        help="how much more came of it than expected, by the critic or else by a baseline; it is pushed that way.",
    ),
    Channel(
        "value",
        "value",
        "",
        diverging=True,
        decimals=2,
        columns=("values",),
        values=_column("values"),
        help="what the critic, if there is one, expected to be still earned, just before the token was written.",
    ),
    Channel(
        "reward",
        "reward",
        "",
        diverging=True,
        decimals=3,
        columns=("rewards",),
        values=_column("rewards"),
        help="what the token earned: minus the KL penalty, if the reward has it, and on the last token plus the score.",
    ),
    Channel(
        "return",
        "return",
        "",
        diverging=True,
        decimals=2,
        columns=("returns",),
        values=_column("returns"),
        help="advantage plus value, what the critic learns to expect there; without one the rewards from there on.",
    ),
    Channel(
        "td_error",
        "TD error",
        "",
        diverging=True,
        decimals=2,
        columns=("td_errors",),
        values=_column("td_errors"),
        help="the reward plus the discounted value after the token, minus the value before it.",
    ),
    Channel(
        "ratio",
        "ratio",
        "",
        diverging=True,
        decimals=2,
        columns=("ratios",),
        values=_log_ratio,
        help="how many times likelier the update has made the token, at its last measured pass; 1 is unchanged.",
        signed=False,
        shown=_exp,
    ),
    Channel(
        "logprob",
        "log-prob",
        "nats",
        diverging=False,
        decimals=2,
        columns=("logprobs",),
        values=_surprisal,
        help="of the token under the policy that wrote it: the stronger its mark, the greater the surprise.",
        signed=False,
        shown=_negative,
    ),
    Channel(
        "entropy",
        "entropy",
        "nats",
        diverging=False,
        decimals=2,
        columns=("entropy",),
        values=_column("entropy"),
        help="how undecided the policy was about which token to write there.",
        signed=False,
    ),
)

CHANNELS = {channel.name: channel for channel in _CHANNELS}
