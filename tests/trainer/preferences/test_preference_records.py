"""Comparisons are the same in any order of their completions, and judgements follow the order."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import permutations

import pytest

from trainer.preferences.records import Choice, Comparison, Judgement, Text


def reorder(comparison: Comparison, order: tuple[int, ...]) -> Comparison:
    """Return `comparison` reordered, so that the completion at `order[i]` comes to position i."""
    return replace(comparison, completions=tuple(comparison.completions[place] for place in order))


ORDERS = list(permutations(range(3)))
THREE = Comparison(prompt="p", completions=("one", [{"role": "assistant", "content": "two"}], "three"))


@pytest.mark.parametrize("order", ORDERS)
def test_the_key_is_that_of_the_completions_in_any_order(order: tuple[int, ...]) -> None:
    assert reorder(THREE, order).key == THREE.key
    assert len(THREE.key) == 32


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
    assert comparison.order_of(Comparison(prompt="p", completions=("same", "same", "other"))) == (0, 2, 1)


@pytest.mark.parametrize("order", ORDERS)
def test_a_reordered_judgement_says_the_same_of_the_same_completions(order: tuple[int, ...]) -> None:
    judgement = Judgement(ranking=((2,), (0, 1)), order_shown=(2, 0, 1))
    given = reorder(THREE, order)
    placed = judgement.reordered(THREE.order_of(given))

    def named(ranking: tuple[tuple[int, ...], ...], comparison: Comparison) -> list[list[str]]:
        return [sorted(str(comparison.completions[place]) for place in group) for group in ranking]

    assert named(placed.ranking, THREE) == named(judgement.ranking, given)
    assert named((placed.order_shown,), THREE) == named((judgement.order_shown,), given)
    assert [THREE.completions[place] for place in placed.order_shown] == [
        given.completions[place] for place in judgement.order_shown
    ]


def test_a_reordered_judgement_keeps_everything_that_names_no_place() -> None:
    judgement = Judgement(
        ranking=((0,), (1,)),
        strength=3,
        labeller="ann",
        note="n",
        flags=("f",),
        seconds=1.5,
        order_shown=(0, 1),
        guidelines="g",
        time=7.0,
    )
    assert all(getattr(judgement, field.name) for field in fields(judgement))
    assert judgement.reordered((1, 0)) == replace(judgement, ranking=((1,), (0,)), order_shown=(1, 0))


@pytest.mark.parametrize(("choice", "swapped"), [("a", "b"), ("b", "a"), ("tie", "tie"), ("skip", "skip")])
def test_a_choice_comes_back_and_is_swapped_with_the_completions(choice: Choice, swapped: Choice) -> None:
    judgement = Judgement.chosen(choice)
    assert judgement.choice == choice
    assert judgement.reordered((1, 0)).choice == swapped
