"""Reward for responses close to a target length."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.rewards.records import RewardInput, SourceScores


class LengthReward:
    """Score -d / (d + tolerance) with d = |number of completion ids - target|: 0 to -1, -0.5 at d = tolerance.

    It is smooth away from the target and never flat, so that the policy learns from responses of any length.
    """

    name = "length"

    def __init__(self, target: int, tolerance: int) -> None:
        self.target = target
        self.tolerance = tolerance

    def __call__(self, batch: Sequence[RewardInput]) -> SourceScores:
        """Return one score per sequence, above -1 and at most 0."""
        distances = [abs(len(row.completion_ids) - self.target) for row in batch]
        return SourceScores([-distance / (distance + self.tolerance) for distance in distances])
