"""Comparisons are the same in any order of their completions, and judgements follow the order."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from trainer.preferences.records import Choice, Comparison, Judgement, Origin, Preference, Text

ORDERS = list(permutations(range(3)))
THREE = Comparison(prompt="p", completions=("one", [{"role": "assistant", "content": "two"}], "three"))


@pytest.mark.parametrize("order", ORDERS)
def test_a_preference_in_another_order_has_the_same_key_and_says_the_same(order: tuple[int, ...]) -> None:
    judgement = Judgement(ranking=((2,), (0, 1)), order_shown=(2, 0, 1), labeller="ann", note="n", seconds=1.5)
    origins = tuple(Origin(row=row) for row in range(3))
    columns = {"scores": [0.0, 1.0, 2.0], "years": [7, 8, 9]}
    given = Preference(comparison=replace(THREE, origins=origins, columns=columns), judgement=judgement)
    found = given.at(*order)
    assert found.comparison.completions == tuple(THREE.completions[place] for place in order)
    assert found.comparison.key == THREE.key
    assert len(THREE.key) == 32
    assert found.judgement.choice == judgement.choice
    shown = [order[place] for place in found.judgement.order_shown]
    assert shown == [2, 0, 1]
    assert [sorted(order[place] for place in group) for group in found.judgement.ranking] == [[2], [0, 1]]
    assert [origin.row for origin in found.comparison.origins] == list(order) == found.comparison.columns["scores"]
    assert found.comparison.columns["years"] == [7, 8, 9]
    assert found.at(*found.comparison.places_of(given.comparison)) == given


def test_the_key_does_not_depend_on_origins_columns_or_the_order_of_a_messages_keys() -> None:
    turned = Comparison(prompt="p", completions=("one", [{"content": "two", "role": "assistant"}], "three"))
    assert replace(turned, columns={"row": 7}).key == THREE.key


@pytest.mark.parametrize(
    ("prompt", "completions"),
    [
        ("q", ("one", "two")),
        ("p", ("one", "two ")),
        ("p", ("one", "two", "two")),
        ("p", ("one", "p")),
        ("one", ("p", "two")),
        ("p", ("one", [{"role": "user", "content": "two"}])),
        ("p", ("one", '[{"content": "two", "role": "assistant"}]')),  # text that looks like messages
        ("p", ("one", '"two"')),
    ],
)
def test_other_texts_have_another_key(prompt: str, completions: tuple[Text, ...]) -> None:
    cases = [("p", ("one", "two")), ("p", ("one", [{"role": "assistant", "content": "two"}]))]
    keys = {Comparison(prompt=prompt, completions=completions).key for prompt, completions in cases}
    assert Comparison(prompt=prompt, completions=completions).key not in keys


def test_equal_completions_each_have_a_place_of_their_own() -> None:
    comparison = Comparison(prompt="p", completions=("same", "other", "same"))
    assert comparison.places_of(Comparison(prompt="p", completions=("same", "same", "other"))) == [0, 2, 1]


@pytest.mark.parametrize(("choice", "swapped"), [("a", "b"), ("b", "a"), ("tie", "tie"), ("skip", "skip")])
def test_a_choice_comes_back_and_is_swapped_with_the_completions(choice: Choice, swapped: Choice) -> None:
    judgement = Judgement.chosen(choice)
    assert judgement.choice == choice
    pair = Comparison(prompt="p", completions=("x", "y"))
    assert Preference(comparison=pair, judgement=judgement).at(1, 0).judgement.choice == swapped
