"""Promises of the quickstart about the prompt sets that ship with the trainer."""

from __future__ import annotations

import json
from collections import Counter

from apart import ROOT
from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

STORY_OPENINGS = ROOT / "trainer" / "presets" / "prompts" / "story-openings.jsonl"


def test_the_openings_are_many_different_beginnings_of_sentences_without_a_mood_of_their_own() -> None:
    rows = [json.loads(line) for line in STORY_OPENINGS.read_text(encoding="utf-8").splitlines()]
    assert len(rows) >= 40 * 8, "batches of the quickstart"
    moods = Counter(row["mood"] for row in rows)
    assert set(moods) == {"neutral", "tense", "warm", "sad"}
    assert moods["warm"] <= moods["tense"] + moods["sad"]
    starts = [tuple(row["prompt"].lower().split()[:4]) for row in rows]
    assert len(set(starts)) == len(starts)
    assert max(Counter(start[0] for start in starts).values()) <= len(rows) / 4
    for row in rows:
        prompt = row["prompt"]
        assert list(row) == ["prompt", "setting", "mood"], row
        assert 6 <= len(prompt.split()) <= 16
        assert prompt == " ".join(prompt.split())
        assert prompt[-1].isalpha(), "it goes on"
    lexicon = SentimentIntensityAnalyzer()
    scores = [lexicon.polarity_scores(row["prompt"])["compound"] for row in rows]
    assert sum(abs(score) <= 0.5 for score in scores) >= 0.9 * len(scores)
    assert abs(sum(scores) / len(scores)) < 0.05
