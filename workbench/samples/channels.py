"""Channels, the numbers of a token that colour the text: their formats, scales from 0 to 1, and colours."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.style import Style
from textual.color import Color

from workbench.kit.theming import contrast
from workbench.run.sample_table import OUTLYING, TokenSample, robust_z
from workbench.samples.token_facts import exp

_LARGE = 1e5  # numbers from here on are written in scientific notation
_QUANTILE = 0.98
_LEAST_END = 0.01  # about the printed precision: a channel close to 0 is drawn as flat, not as noise
_STEPS = 8  # of colour, from none to the strongest
_STRONGEST = 0.8  # share of the theme's heat colour in the last step, or less, so that the text keeps its colour
_FAINT = 0.6  # share of the theme's middle colour in the block of zero
_READABLE = 4.5  # contrast of text, WCAG 2.2 AA


@dataclass(frozen=True, slots=True)
class Channel:
    """One number per token. The colours are drawn from `values`; the text shows `shown` of each value."""

    name: str
    key: str
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
        "k",
        "KL",
        ("logprobs", "ref_logprobs"),
        "log-prob under the policy minus log-prob under the reference (k1); above 0 the policy prefers the token.",
        computed=lambda sample: sample.token_kl,
    ),
    Channel(
        "advantage",
        "a",
        "advantage",
        ("advantages",),
        "how much better the token did than the critic, or a baseline, expected; the update pushes it that way.",
    ),
    Channel(
        "value",
        "v",
        "value",
        ("values",),
        "the reward that the critic expected from here on, just before the token; only with a critic.",
    ),
    Channel(
        "reward",
        "r",
        "reward",
        ("rewards",),
        "reward of the token: minus the KL penalty if the reward includes it, plus the score on the last token.",
        decimals=3,
    ),
    Channel(
        "return",
        "t",
        "return",
        ("returns",),
        "advantage plus value, which steps teach the critic; without a critic, the rewards from the token on.",
    ),
    Channel(
        "td_error",
        "d",
        "TD error",
        ("td_errors",),
        "reward plus the discounted value after the token, minus the value before it.",
    ),
    Channel(
        "ratio",
        "i",
        "ratio",
        ("ratios",),
        "how much likelier the update made this token (last measured epoch); 1 = no change.",
        signed=False,
        computed=_log_ratio,
        shown=exp,
    ),
    Channel(
        "logprob",
        "l",
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
        "e",
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


def outliers(values: Sequence[float]) -> list[int]:
    """Return the indices of values that are far from the others (robust z over 3.5) or not finite, ascending."""
    import numpy as np

    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0) or 1.0
    scaled = np.array(values, dtype=np.float64) / largest  # so that no difference overflows
    far = ~(np.abs(robust_z(scaled, np.zeros(len(scaled), dtype=np.int64))) <= OUTLYING)
    return [int(place) for place in np.flatnonzero(far)]


@dataclass(frozen=True, slots=True)
class Ladder:
    """Styles of text from one end of a scale to the other; `plain` for a token without a reading."""

    steps: tuple[Style, ...]
    marks: tuple[Style, ...]  # of the blocks, which have no background
    missing: Style
    plain: Style

    def at(self, position: float, *, mark: bool = False) -> Style:
        """Return the style of text at `position`, 0 to 1, or of its block; for NaN, that of a missing number."""
        steps = self.marks if mark else self.steps
        return self.missing if math.isnan(position) else steps[math.floor(position * (len(steps) - 1) + 0.5)]


def heat_ladder(variables: Mapping[str, str], *, diverging: bool, colorless: bool = False) -> Ladder:
    """Return the ladder of the theme with these variables.

    Values further from the middle, or from 0 of a magnitude, stand out more. Text reaches a contrast of 4.5 on every
    step. The terminal's own colours (`ansi_...`) cannot be mixed, so they give few steps: plain, coloured text,
    coloured background. colorless: use attributes only.
    """
    if colorless:
        plain, strong = Style(), Style(bold=True)
        attributes = (strong, plain, strong) if diverging else (plain, strong)
        return Ladder(attributes, (plain,), Style(italic=True), plain)
    ground, text = Color.parse(variables["background"]), Color.parse(variables["foreground"])
    low, mid, high = (Color.parse(variables[f"heat-{name}"]) for name in ("low", "mid", "high"))
    plain, missing = _style(text, ground), _style(mid, ground) + Style(italic=True)
    rising, marks = _rise(mid, high, text, ground)
    if not diverging:
        return Ladder((plain, *rising), marks, missing, plain)
    falling, others = _rise(mid, low, text, ground)
    return Ladder((*reversed(falling), plain, *rising), (*reversed(others[1:]), *marks), missing, plain)


def underline_style(position: float, *, diverging: bool) -> Style:
    """Return no underline in the first third of the way to an end, one in the second, two in the last; none for NaN."""
    size = abs(2 * position - 1) if diverging else position
    if not size >= 1 / 3:
        return Style.null()
    return Style(underline=True, underline2=True) if size > 2 / 3 else Style(underline=True)


def _rise(mid: Color, heat: Color, text: Color, ground: Color) -> tuple[tuple[Style, ...], tuple[Style, ...]]:
    """Return the styles of text after the plain one up to `heat`, and those of blocks from the middle up to it."""
    if ground.ansi is not None:
        ends = Color.parse("ansi_black"), Color.parse("ansi_bright_white")
        steps = _style(heat, ground), _style(max(ends, key=lambda end: contrast(end, heat)), heat)
        return steps, (_style(mid, ground), _style(heat, ground))
    shares = (_STRONGEST * share / 40 for share in range(40, 0, -1))
    strongest = next((share for share in shares if contrast(text, ground.blend(heat, share)) >= _READABLE), 0.0)
    grounds = [ground.blend(heat, strongest * step / _STEPS) for step in range(1, _STEPS + 1)]
    least = ground.blend(mid, _FAINT)
    marks = tuple(_style(least.blend(heat, step / _STEPS), ground) for step in range(_STEPS + 1))
    return tuple(_style(text, on) for on in grounds), marks


def _style(text: Color, ground: Color) -> Style:
    return Style(color=text.rich_color, bgcolor=ground.rich_color)
