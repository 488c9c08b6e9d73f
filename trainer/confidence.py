"""95% confidence interval of a share: of wins, of correct pairs, of equal labels."""

from __future__ import annotations

import math

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
