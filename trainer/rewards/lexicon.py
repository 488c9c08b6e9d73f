"""Reward for sentiment, by a lexicon."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from trainer.rewards.records import RewardInput, SourceScores


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
