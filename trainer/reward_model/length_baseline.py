"""Baseline that sees only lengths. A reward model that does not beat it has learnt no more than to prefer length."""

from __future__ import annotations

import numpy as np

from trainer.reward_model.outcomes import Leads

_RIDGE = 1e-3  # keeps the slope finite where length alone decides every pair
_STEPS = 50


def fit_length_slope(longer_by: Leads) -> float:
    """Fit the slope b, logits a token, of a logistic regression on how much longer the better completion is.

        max_b sum_i log sigmoid(b x_i) - ridge/2 (b s)^2,   s the root mean square of x

    Solved by Newton's method. There is no intercept, because the order within a pair means nothing. Returns 0 without
    pairs.
    """
    scale = float(np.sqrt(np.square(longer_by).mean())) if longer_by.size else 0.0
    if scale == 0:
        return 0.0
    x, slope = longer_by / scale, 0.0
    for _ in range(_STEPS):
        wrong = 1 / (1 + np.exp(np.clip(slope * x, -500, 500)))
        gradient = (wrong * x).mean() - _RIDGE * slope
        curvature = (wrong * (1 - wrong) * x * x).mean() + _RIDGE
        step = float(np.clip(gradient / curvature, -2, 2))  # a full step from afar may overshoot
        slope += step
        if abs(step) < 1e-10:
            break
    return slope / scale
