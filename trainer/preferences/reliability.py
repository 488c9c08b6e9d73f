"""Agreement of judgements beyond chance, and the interval of a share. Pure functions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

Z95 = 1.959963984540054  # the normal distribution's 97.5% quantile


class Kappa(NamedTuple):
    """Cohen's kappa of two observers over `n` units; NaN where it is not defined."""

    value: float
    standard_error: float
    observed: float  # share of the units on which the two agree
    n: int

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the large-sample normal approximation, within [-1, 1]."""
        if math.isnan(self.value):
            return math.nan, math.nan
        margin = Z95 * self.standard_error
        return max(-1.0, self.value - margin), min(1.0, self.value + margin)


def cohen_kappa(first: Sequence[Hashable], second: Sequence[Hashable]) -> Kappa:
    """Compute Cohen's kappa of two observers' nominal values of the same units.

        kappa = (p_o - p_e) / (1 - p_e),   p_o = sum_i p_ii,   p_e = sum_i p_i. p_.i

    with p_ij the share of units that the first called i and the second j. The standard error is the large-sample one:

        n (1 - p_e)^2 SE^2 = sum_i p_ii (1 - (p_i. + p_.i)(1 - kappa))^2
                             + (1 - kappa)^2 sum_{i != j} p_ij (p_.i + p_j.)^2 - (kappa - p_e (1 - kappa))^2

    NaN if both used the same single value throughout (p_e = 1), and without units. Raises ValueError for sequences
    of different lengths. Cohen 1960; Fleiss, Cohen and Everitt 1969, eq. 13.
    """
    pairs = Counter(zip(first, second, strict=True))
    n = pairs.total()
    if n == 0:
        return Kappa(math.nan, math.nan, math.nan, 0)
    rows, columns = Counter(first), Counter(second)
    observed = sum(count for (i, j), count in pairs.items() if i == j) / n
    expected = sum(count * columns[i] for i, count in rows.items()) / n**2
    if expected == 1:
        return Kappa(math.nan, math.nan, observed, n)
    kappa = (observed - expected) / (1 - expected)
    agreeing = sum(c / n * (1 - (rows[i] + columns[i]) / n * (1 - kappa)) ** 2 for (i, j), c in pairs.items() if i == j)
    others = sum(c / n * ((columns[i] + rows[j]) / n) ** 2 for (i, j), c in pairs.items() if i != j)
    variance = agreeing + (1 - kappa) ** 2 * others - (kappa - expected * (1 - kappa)) ** 2
    return Kappa(kappa, math.sqrt(max(variance, 0.0) / n) / (1 - expected), observed, n)


def krippendorff_alpha(units: Iterable[Sequence[Hashable]]) -> float:
    """Compute Krippendorff's alpha for nominal values; a unit is its values from any number of observers.

        alpha = 1 - D_o / D_e,   D_o = 1/n sum_{c != k} o_ck,   D_e = 1/(n (n - 1)) sum_{c != k} n_c n_k

    where a unit of m >= 2 values adds, for each ordered pair of them, 1/(m - 1) to the coincidence o_ck, n_c is the
    number of values c in such units, and n their sum. Units of fewer values say nothing and are left out; missing
    values are simply absent. NaN where nothing varies (D_e = 0). Krippendorff 2011, "Computing
    Krippendorff's Alpha-Reliability", section C.
    """
    totals: Counter[Hashable] = Counter()
    disagreements = 0.0
    for values in units:
        m = len(values)
        if m < 2:
            continue
        counts = Counter(values)
        totals += counts
        disagreements += sum(count * (m - count) for count in counts.values()) / (m - 1)
    n = totals.total()
    expected = sum(count * (n - count) for count in totals.values())
    return 1 - (n - 1) * disagreements / expected if expected else math.nan


def wilson_interval(successes: float, n: int, z: float = Z95) -> tuple[float, float]:
    """Return the score interval of a share of `successes` in `n`; NaN for n = 0.

        (p + z^2/2n +- z sqrt(p (1 - p)/n + z^2/4n^2)) / (1 + z^2/n)

    Wilson 1927.
    """
    if n == 0:
        return math.nan, math.nan
    p = successes / n
    centre = p + z**2 / (2 * n)
    margin = z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    return max(0.0, (centre - margin) / (1 + z**2 / n)), min(1.0, (centre + margin) / (1 + z**2 / n))
