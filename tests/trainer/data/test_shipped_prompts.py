"""Promises of the quickstart about the prompt sets that ship with the trainer."""

from __future__ import annotations

import json
import re

import pytest
from apart import ROOT
from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

STORY_OPENINGS = ROOT / "trainer" / "presets" / "prompts" / "story-openings.jsonl"
MOODS = {"neutral", "tense", "warm", "sad"}


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    """Parse every line of the file; a line that is not JSON fails here."""
    return [json.loads(line) for line in STORY_OPENINGS.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def prompts(rows: list[dict[str, str]]) -> list[str]:
    return [row["prompt"] for row in rows]


def first_words(prompt: str, count: int) -> str:
    """Return the first `count` words in lower case, without punctuation."""
    return " ".join(re.findall(r"[\w'-]+", prompt.lower())[:count])


def duplicates(items: list[str]) -> set[str]:
    return {item for item in items if items.count(item) > 1}


def test_each_line_has_a_prompt_a_setting_and_a_known_mood(rows: list[dict[str, str]]) -> None:
    for row in rows:
        assert list(row) == ["prompt", "setting", "mood"], row
        assert row["setting"].strip(), row
        assert row["mood"] in MOODS, row


def test_there_are_enough_openings_for_forty_batches_of_eight(prompts: list[str]) -> None:
    assert len(prompts) >= 40 * 8


def test_no_opening_appears_twice(prompts: list[str]) -> None:
    assert not duplicates([prompt.casefold() for prompt in prompts])


def test_no_two_openings_share_their_first_four_words(prompts: list[str]) -> None:
    assert not duplicates([first_words(prompt, 4) for prompt in prompts])


def test_no_single_word_starts_more_than_a_quarter_of_the_openings(prompts: list[str]) -> None:
    starts = [first_words(prompt, 1) for prompt in prompts]
    assert max(starts.count(word) for word in set(starts)) <= len(prompts) / 4


def test_openings_are_six_to_sixteen_words(prompts: list[str]) -> None:
    assert [prompt for prompt in prompts if not 6 <= len(prompt.split()) <= 16] == []


def test_openings_have_no_stray_whitespace(prompts: list[str]) -> None:
    assert [prompt for prompt in prompts if prompt != " ".join(prompt.split())] == []


def test_openings_stop_in_the_middle_of_a_sentence(prompts: list[str]) -> None:
    assert [prompt for prompt in prompts if not prompt[-1].isalpha()] == []


def test_every_mood_appears_and_warm_does_not_outweigh_tense_and_sad(rows: list[dict[str, str]]) -> None:
    counts = {mood: sum(row["mood"] == mood for row in rows) for mood in MOODS}
    assert min(counts.values()) >= 20
    assert counts["warm"] <= counts["tense"] + counts["sad"]


def test_nine_openings_in_ten_leave_the_mood_to_the_continuation(prompts: list[str]) -> None:
    lexicon = SentimentIntensityAnalyzer()
    scores = [lexicon.polarity_scores(prompt)["compound"] for prompt in prompts]
    assert sum(abs(score) <= 0.5 for score in scores) >= 0.9 * len(scores)
    assert abs(sum(scores) / len(scores)) < 0.05
