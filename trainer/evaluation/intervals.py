"""Statistics over P prompts: means and shares with 95% intervals, and best of n. Pure functions.

A prompt is the unit: responses to one prompt are correlated, so several of them count as one mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from trainer.confidence import Interval, wilson_interval

Floats = npt.NDArray[np.float64]

RESAMPLES = 2000


def prompt_means(values: Floats) -> Floats:
    """Return the mean of each prompt's numbers that are not NaN; NaN for a prompt without any. values: [P, K]."""
    known = (~np.isnan(values)).sum(axis=1)
    return np.where(known > 0, np.nansum(values, axis=1) / np.maximum(known, 1), math.nan)


def share_interval(shares: Floats) -> Interval:
    """Estimate the mean of `shares` [P], each within [0, 1] or NaN, which is left out, by Wilson's interval.

    Each prompt counts as one trial. This makes the interval wider than necessary if shares lie between 0 and 1, never
    narrower.
    """
    shares = shares[~np.isnan(shares)]
    value = float(shares.mean()) if len(shares) else math.nan
    return Interval(value, *wilson_interval(float(shares.sum()), len(shares)))


def bootstrap_interval(rows: Floats, statistic: Callable[[Floats], Floats]) -> Interval:
    """Estimate a statistic that is not a mean over prompts, by the percentile bootstrap over prompts.

    rows: [P, C] contributions of the prompts; statistic: maps sums of rows [..., C] to [...]. The draws are always the
    same. Efron 1979.
    """
    value, count = float(statistic(rows.sum(axis=0))), len(rows)
    if count < 2:
        return Interval(value, math.nan, math.nan)
    drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    found = statistic(drawn @ rows)
    low, high = np.nanquantile(found, [0.025, 0.975]) if np.isfinite(found).any() else (math.nan, math.nan)
    return Interval(value, float(low), float(high))


def win_shares(policy: Floats, reference: Floats, same: npt.NDArray[np.bool_]) -> Floats:
    """Return, for each prompt, the share of pairs in which the policy's response scores higher; a tie counts half.

    policy: [P, K] scores; reference: [P, L]; same: [P, K, L] true where the two responses are equal. These are ties,
    even if their scores differ by rounding. Pairs without a score (NaN) do not count. Returns [P], NaN without a pair.
    """
    ahead = np.sign(policy[:, :, None] - reference[:, None])
    return prompt_means((0.5 + 0.5 * np.where(same & ~np.isnan(ahead), 0.0, ahead)).reshape(len(policy), -1))


def rank_correlation(x: Floats, y: Floats) -> float:
    """Return Spearman's correlation of x and y [N]: that of their ranks, equal numbers sharing a rank.

    Pairs with a NaN are left out; NaN where one side does not vary. Spearman 1904.
    """
    known, ranks = ~np.isnan(x) & ~np.isnan(y), []
    x, y = x[known], y[known]
    for values in (x, y):
        _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
        rank = np.cumsum(counts) - (counts - 1) / 2
        ranks.append(rank[place])
    if any(len(rank) < 2 or rank.std() == 0 for rank in ranks):
        return math.nan
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def best_of_n(scores: Floats, n: int) -> Floats:
    """Return, for each prompt, the expected highest score of n of its m responses, drawn without replacement.

        sum_i C(i - 1, n - 1) / C(m, n) s_(i),   s_(1) <= ... <= s_(m)

    This is unbiased; for n = m it is the highest score. scores: [P, m], 1 <= n <= m. Returns [P], NaN where one is NaN.
    """
    m = scores.shape[1]
    weights = np.array([math.comb(i - 1, n - 1) / math.comb(m, n) for i in range(1, m + 1)])
    best: Floats = np.sort(scores, axis=1) @ weights
    return best


def best_of_kl(n: int) -> float:
    """Return the upper bound of the KL of best of n from its sampling policy, nats a sequence: log n - (n - 1)/n.

    Beirami et al. 2024 (arXiv 2401.01879), theorem 1.
    """
    return math.log(n) - (n - 1) / n


def critic_sums(values: Floats, returns: Floats, mask: Floats) -> Floats:
    """Sum over the real tokens of each row: 1, G, G^2, G - V, (G - V)^2. All inputs are [B, T]. Returns [B, 5]."""
    real = mask > 0
    gains, errors = np.where(real, returns, 0.0), np.where(real, returns - values, 0.0)
    return np.stack([x.sum(axis=1) for x in (real.astype(float), gains, gains**2, errors, errors**2)], axis=1)


def explained_variance_of_sums(sums: Floats) -> Floats:
    """Compute 1 - Var(G - V) / Var(G) from the total `critic_sums` [..., 5]; NaN where the returns do not vary."""
    count, gains, gains_squared, errors, errors_squared = np.moveaxis(sums, -1, 0)
    count = np.where(count > 0, count, math.nan)  # no response has a score
    variance = gains_squared / count - (gains / count) ** 2
    unexplained = errors_squared / count - (errors / count) ** 2
    varies = variance > 1e-12 * np.maximum(gains_squared / count, 1e-300)  # rounding leaves a tiny variance
    found: Floats = np.where(varies, 1 - unexplained / np.where(varies, variance, 1.0), math.nan)
    return found


def rms_of_sums(sums: Floats) -> Floats:
    """Compute the root of the mean of (G - V)^2 from the total `critic_sums` [..., 5]."""
    found: Floats = np.sqrt(sums[..., 4] / np.where(sums[..., 0] > 0, sums[..., 0], math.nan))
    return found
