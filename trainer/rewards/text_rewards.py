"""Rewards computed from a response's text alone: its length, a regular expression, sentiment by a lexicon."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from trainer.reward_types import RewardInput, SourceScores


@dataclass(slots=True)
class LengthReward:
    """Score -d / (d + tolerance) with d = |number of completion ids - target|: 0 to -1, -0.5 at d = tolerance.

    It is smooth away from the target and never flat, so that the policy learns from responses of any length.
    """

    target: int
    tolerance: int
    name: str = "length"

    def __call__(self, batch: Sequence[RewardInput]) -> SourceScores:
        """Return one score per sequence, above -1 and at most 0."""
        distances = [abs(len(row.completion_ids) - self.target) for row in batch]
        return SourceScores([-distance / (distance + self.tolerance) for distance in distances])


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


class LexiconReward:
    """VADER's compound score of the completion alone: -1 (sad) to 1 (cheerful).

    Hutto and Gilbert 2014, VADER: A Parsimonious Rule-based Model for Sentiment Analysis of Social Media Text
    """

    name = "lexicon"

    def __call__(self, batch: Sequence[RewardInput]) -> SourceScores:
        """Return one score per sequence, -1 to 1; 0 for an empty completion."""
        analyzer = _analyzer()
        return SourceScores([float(analyzer.polarity_scores(row.completion)["compound"]) for row in batch])


@cache
def _analyzer() -> Any:
    from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

    return SentimentIntensityAnalyzer()
