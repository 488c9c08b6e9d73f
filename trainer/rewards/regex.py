"""Reward for matches of a regular expression."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trainer.rewards.records import RewardInput, SourceScores


class RegexReward:
    """Score 1 if the pattern is found in the completion, else 0; with `count`, the number of its matches."""

    name = "regex"

    def __init__(self, pattern: str, *, count: bool = False, ignore_case: bool = False) -> None:
        self.pattern = re.compile(pattern, re.IGNORECASE if ignore_case else re.NOFLAG)
        self.count = count

    def __call__(self, batch: Sequence[RewardInput]) -> SourceScores:
        """Return one score per sequence, 0 or more."""
        return SourceScores([self._score(row.completion) for row in batch])

    def _score(self, text: str) -> float:
        if self.count:
            return float(sum(1 for _ in self.pattern.finditer(text)))
        return float(self.pattern.search(text) is not None)
