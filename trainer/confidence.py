"""95% confidence intervals: of shares, such as those of wins, correct pairs and equal labels, and of means."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # labelling needs only shares, and no numpy
    import numpy as np
    import numpy.typing as npt

Z95 = 1.959963984540054  # the normal distribution's 97.5% quantile


def wilson_interval(successes: float, n: int) -> tuple[float, float]:
    """Return the score interval of a share of `successes` in `n`; NaN for n = 0.

        (p + z^2/2n +- z sqrt(p (1 - p)/n + z^2/4n^2)) / (1 + z^2/n)

    Wilson 1927.
    """
    if n == 0:
        return math.nan, math.nan
    p, z = successes / n, Z95
    centre = p + z**2 / (2 * n)
    margin = z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    return max(0.0, (centre - margin) / (1 + z**2 / n)), min(1.0, (centre + margin) / (1 + z**2 / n))


class Interval(NamedTuple):
    """A statistic and its 95% interval; NaN where undefined."""

    value: float
    low: float
    high: float


def mean_interval(values: npt.NDArray[np.float64]) -> Interval:
    """Estimate the mean of `values` [P], without those that are NaN, by Student's t.

    The interval is mean +- t s / sqrt(P), with s the sample's deviation; its bounds are NaN for P < 2.
    """
    values = values[values == values]  # NaN is not equal to itself
    count = len(values)
    mean = float(values.mean()) if count else math.nan
    if count < 2:
        return Interval(mean, math.nan, math.nan)
    margin = t_quantile(count - 1) * float(values.std(ddof=1)) / math.sqrt(count)
    return Interval(mean, mean - margin, mean + margin)


def t_quantile(df: int) -> float:
    """Return the 97.5% quantile of Student's t with `df` >= 1 degrees of freedom, where P(|T| <= t) = 0.95.

    With x = atan(t / sqrt(df)) the probability is sin x (1 + 1/2 cos^2 x + 1 3 / (2 4) cos^4 x + ...) for even df,
    2/pi (x + sin x (cos x + 2/3 cos^3 x + ...)) for odd, up to the power df - 2. Abramowitz and Stegun, 26.7.3 and 4.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        x = (low + high) / 2
        low, high = (x, high) if _within(x, df) < 0.95 else (low, x)
    return math.sqrt(df) * math.tan(low)


def _within(x: float, df: int) -> float:
    cosine, sine = math.cos(x), math.sin(x)
    term, total = cosine ** (df % 2), 0.0
    for power in range(df % 2, df - 1, 2):
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    return 2 / math.pi * (x + sine * total) if df % 2 else sine * total


ROUNDING = 1e-6
"""Share of a number, or of 1, up to which differences may be rounding errors of float32.

Advantages and scores that vary no more have no signal: no step follows them.
"""
