"""Closeness to a wished length."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.rewards.records import RewardInput, SourceScores


class LengthReward:
    """-d / (d + tolerance) with d = |number of completion ids - target|: 0 to -1, -0.5 at d = tolerance.

    Smooth away from the target and never flat, so that a response far off still learns which way to go.
    """

    name = "length"

    def __init__(self, target: int, tolerance: int) -> None:
        self.target = target
        self.tolerance = tolerance

    def __call__(self, batch: Sequence[RewardInput]) -> SourceScores:
        """One score a sequence, above -1 and at most 0."""
        distances = [abs(len(row.completion_ids) - self.target) for row in batch]
        return SourceScores([-distance / (distance + self.tolerance) for distance in distances])
