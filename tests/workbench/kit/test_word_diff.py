"""A diff of two texts loses no character of either, and finds what a reader would call the same words."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.kit.word_diff import Part, word_diff

TEXTS = st.text() | st.lists(st.sampled_from(["joy", "the", " ", "\n\n", ".", "日", "本", "e\u0301", "🎉"])).map(
    "".join
)


def old_and_new(parts: list[Part]) -> tuple[str, ...]:
    return tuple("".join(text for kind, text in parts if kind in ("same", one)) for one in ("gone", "new"))


@given(TEXTS, TEXTS)
def test_the_parts_joined_are_the_two_texts(old: str, new: str) -> None:
    assert old_and_new(word_diff(old, new)) == (old, new)


@given(TEXTS, TEXTS)
def test_neighbouring_parts_differ_in_kind_and_none_is_empty(old: str, new: str) -> None:
    parts = word_diff(old, new)
    assert all(text for _, text in parts)
    assert all(one[0] != other[0] for one, other in itertools.pairwise(parts))


@given(TEXTS)
def test_a_text_is_the_same_as_itself(text: str) -> None:
    assert word_diff(text, text) == ([("same", text)] if text else [])


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("a sad day", "a glad day", [("same", "a "), ("gone", "sad"), ("new", "glad"), ("same", " day")]),
        ("joy", "joy!", [("same", "joy"), ("new", "!")]),
        ("one two", "two", [("gone", "one "), ("same", "two")]),
        ("one\ntwo", "one two", [("same", "one"), ("gone", "\n"), ("new", " "), ("same", "two")]),
        ("空は青い", "空は赤い", [("same", "空は"), ("gone", "青"), ("new", "赤"), ("same", "い")]),
        ("e\u0301", "e", [("gone", "e\u0301"), ("new", "e")]),
        ("", "x", [("new", "x")]),
    ],
)
def test_words_punctuation_spaces_and_ideograms_are_compared_whole(
    old: str, new: str, parts: list[tuple[str, str]]
) -> None:
    assert word_diff(old, new) == parts


def test_spaces_alone_are_not_a_match() -> None:
    kinds = [kind for kind, _ in word_diff("a b c d", "e f g h")]
    assert kinds == ["gone", "new"]


def test_long_texts_match_by_their_rarer_words() -> None:
    rng = random.Random(3)
    words = [f"w{number}" for number in range(2000)]
    text = rng.choices(words, [1 / (1 + number) for number in range(2000)], k=4000)
    other = text.copy()
    changed = range(100, 4000, 400)
    for place in changed:
        other[place] = f"new{place}"
    other = ["start", *other, "end"]  # otherwise all but the middle would count as equal ends
    diff = word_diff(" ".join(["begin", *text, "over"]), " ".join(other))
    assert {text.strip() for kind, text in diff if kind == "new"} == {
        "start",
        "end",
        *(f"new{place}" for place in changed),
    }


def test_texts_of_few_words_over_and_over_are_compared_at_once_by_their_ends() -> None:
    rng = random.Random(3)
    old, new = (" ".join(rng.choices(["the", "a"], k=5000)) for _ in range(2))
    diff = word_diff(f"so {old} x", f"so {new} y")
    assert diff[0][1].startswith("so ")
    assert old_and_new(diff) == (f"so {old} x", f"so {new} y")
    assert len(diff) < 10
