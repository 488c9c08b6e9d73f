"""Running mean and deviation of scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

SMALLEST_DEVIATION = 1e-8  # below it, scores differ by rounding alone and are only centred


class RunningMoments:
    """Count, mean and sum of squared deviations of a stream of numbers, in float64.

    A batch b is merged into the statistics so far, a, by

        mean = mean_a + d n_b / n,   m2 = m2_a + m2_b + d^2 n_a n_b / n,   d = mean_b - mean_a, n = n_a + n_b

    Chan, Golub and LeVeque 1979, Updating formulae and a pairwise algorithm for computing sample variances.
    """

    def __init__(self, count: int = 0, mean: float = 0.0, m2: float = 0.0) -> None:
        self.count = count
        self.mean = mean
        self.m2 = m2

    @property
    def deviation(self) -> float:
        """Population standard deviation; 0 before the first number."""
        return math.sqrt(self.m2 / self.count) if self.count else 0.0

    def update(self, values: Sequence[float] | npt.NDArray[np.float64]) -> None:
        """Add a batch of finite numbers."""
        batch = np.asarray(values, dtype=np.float64)
        if not batch.size:
            return
        batch_mean = float(batch.mean())
        batch_m2 = float(np.square(batch - batch_mean).sum())
        count = self.count + batch.size
        difference = batch_mean - self.mean
        self.mean += difference * batch.size / count
        self.m2 += batch_m2 + difference * difference * self.count * batch.size / count
        self.count = count

    def normalize(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return `values` minus the mean, divided by the deviation if that is at least 1e-8; unchanged at first."""
        centred = values - self.mean
        return centred / self.deviation if self.deviation >= SMALLEST_DEVIATION else centred
