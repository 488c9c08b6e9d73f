"""Adaptive coefficient of the KL penalty."""

from __future__ import annotations

import math

_LARGEST_ERROR = 0.2


def adapted_kl_coef(kl_coef: float, kl: float, *, target: float, horizon: int, sequences: int) -> float:
    """Return beta (1 + error min(n / horizon, 1)), where error = clip(KL / target - 1, -0.2, 0.2).

    The coefficient rises if the KL is above the target, and falls if it is below. kl, target: nats per sequence;
    sequences: n, the number of sequences that `kl` is the mean of. A KL that is not finite changes nothing. Ziegler
    et al. 2019 (arXiv 1909.08593), section 2.2, without the bound of 1: there, a batch five times as large as the
    horizon can bring the coefficient to 0, and a larger one below it.
    """
    if not math.isfinite(kl):
        return kl_coef
    error = min(max(kl / target - 1, -_LARGEST_ERROR), _LARGEST_ERROR)
    return kl_coef * (1 + error * min(sequences / horizon, 1.0))
