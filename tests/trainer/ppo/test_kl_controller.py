"""The adaptive coefficient of the KL penalty."""

from __future__ import annotations

import math

import pytest

from trainer.maths import adapted_kl_coef

HOW = {"target": 6.0, "horizon": 1000, "sequences": 10}


@pytest.mark.parametrize(
    ("kl", "factor"),
    [
        (6.0, 1.0),  # on target
        (6.6, 1 + 0.1 * 0.01),  # a tenth too much
        (5.4, 1 - 0.1 * 0.01),
        (60.0, 1 + 0.2 * 0.01),  # as far as it may move
        (0.0, 1 - 0.2 * 0.01),
        (-1.0, 1 - 0.2 * 0.01),
    ],
)
def test_the_coefficient_moves_by_the_formula_of_the_paper(kl: float, factor: float) -> None:
    assert adapted_kl_coef(0.05, kl, **HOW) == pytest.approx(0.05 * factor, rel=1e-12)


@pytest.mark.parametrize(("kl", "factor"), [(0.0, 0.8), (60.0, 1.2)])
def test_a_batch_beyond_the_horizon_moves_the_coefficient_by_a_fifth_and_never_below_zero(
    kl: float, factor: float
) -> None:
    assert adapted_kl_coef(0.05, kl, target=6.0, horizon=10, sequences=64) == pytest.approx(0.05 * factor)


@pytest.mark.parametrize("kl", [math.nan, math.inf, -math.inf])
def test_a_kl_that_is_not_finite_changes_nothing(kl: float) -> None:
    assert adapted_kl_coef(0.05, kl, **HOW) == 0.05
