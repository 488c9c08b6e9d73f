"""The interval of a share against published numbers; nouns agree with their counts."""

from __future__ import annotations

import pytest

from trainer.confidence import wilson_interval
from trainer.errors import counted


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (0, 10, 0.0, 0.277532799863),
        (7, 10, 0.396778147461, 0.892208732594),
        (130, 200, 0.58163464336, 0.712711758726),
        (1000, 1000, 0.996173241514, 1.0),
    ],
)
def test_the_wilson_interval_is_that_of_statsmodels(successes: int, n: int, low: float, high: float) -> None:
    assert wilson_interval(successes, n) == pytest.approx((low, high), abs=1e-10)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 labels"), (1, "1 label"), (2, "2 labels"), (12_000, "12,000 labels")]
)
def test_nouns_agree_with_their_count(count: int, text: str) -> None:
    assert counted(count, "label") == text
    assert counted(2, "entry", "entries") == "2 entries"
