"""Texts of an item as a labeller sees them, and the judgement of each key, in the item's own order."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from label_session import item

from trainer.preferences.records import Judgement, Origin, Preference, SessionItem
from workbench.labelling.texts import (
    Draft,
    Turn,
    completion_facts,
    hints,
    judgement_text,
    last_line,
    ranked_places,
    texts_of,
    with_mark,
)


def plain(text: str) -> tuple[Turn, ...]:
    return (Turn("", text),)


def test_texts_are_in_the_order_of_the_item_with_their_roles_unless_they_are_obvious() -> None:
    assert texts_of(item("a", "b", "c", order=(2, 0, 1))).completions == (plain("c"), plain("a"), plain("b"))
    chat = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
    one, two = ([{"role": "assistant", "content": text}] for text in ("one", "two"))
    assert texts_of(item(one, two)).completions == (plain("one"), plain("two"))
    for other in ("two", [*two, {"role": "user", "content": "more"}]):
        seen = texts_of(item(one, other, prompt=chat))
        assert seen.prompt == (Turn("system", "be kind"), Turn("user", "hi"))
        assert seen.completions[0] == (Turn("assistant", "one"),)
    assert seen.completions[1] == (Turn("assistant", "two"), Turn("user", "more"))


KEYS = defaultdict(lambda: "K")


@pytest.mark.parametrize(
    ("completions", "hint"),
    [
        (("a b", "a b"), "identical texts"),
        (("a b", "a  b"), "only white space differs"),
        (("a b\n", "a b"), "only white space differs"),
        (("", " "), "only white space differs"),
        (("a b", "a c"), ""),
        (("a", "a", "b"), "type the digits"),
        (("a", "a", "a"), "identical texts"),
    ],
)
def test_identical_completions_are_recognised(completions: tuple[str, ...], hint: str) -> None:
    one = item(*completions)
    shown = hints(SessionItem(position=0, item=one), texts_of(one), Draft(), KEYS)
    assert hint in shown
    assert bool(hint) == bool(shown)


def typed(marks: str, count: int) -> str:
    ranking = ""
    for mark in marks:
        ranking = ranking[:-1] if mark == "<" else with_mark(ranking, mark, count)
    return ranking


@pytest.mark.parametrize(
    ("marks", "groups", "text"),
    [
        ("213", [[1], [0], [2]], "2 > 1 > 3"),
        ("2=13", [[1, 0], [2]], "2 = 1 > 3"),
        ("2=1=3", [[1, 0, 2]], "2 = 1 = 3"),
        ("22", [[1]], "2"),
        ("2==", [[1]], "2 ="),
        ("=", [], ""),
        ("4", [], ""),
        ("21<3", [[1], [2]], "2 > 3"),
        ("2=<1", [[1], [0]], "2 > 1"),
        ("2=1<3", [[1, 2]], "2 = 3"),
        ("<<", [], ""),
    ],
)
def test_a_ranking_is_typed_in_digits_and_ties(marks: str, groups: list[list[int]], text: str) -> None:
    ranking, one = typed(marks, 3), item("a", "b", "c")
    assert ranked_places(ranking) == groups
    shown = hints(SessionItem(position=0, item=one), texts_of(one), Draft(ranking), KEYS)
    assert shown == (f"ranking: {text}" if text else "type the digits, best first, K between equals")


@given(st.text("123456789=<", max_size=30), st.integers(2, 9))
def test_typing_ranks_no_completion_twice_and_none_that_does_not_exist(marks: str, count: int) -> None:
    places = [place for group in ranked_places(typed(marks, count)) for place in group]
    assert len(places) == len(set(places))
    assert set(places) <= set(range(count))


@pytest.mark.parametrize(
    ("order", "judgement", "text"),
    [
        ((1, 0), Judgement(ranking=((1,), (0,))), "1 is better"),
        ((1, 0), Judgement(ranking=((0,), (1,)), strength=3), "2 is strongly better"),
        ((1, 0), Judgement(ranking=((0, 1),)), "tie"),
        ((1, 0), Judgement(verdict="both_bad"), "both bad"),
        ((2, 0, 1), Judgement(verdict="both_bad"), "all bad"),
        ((2, 0, 1), Judgement(verdict="skip"), "skipped"),
        ((2, 0, 1), Judgement(ranking=((1,), (0, 2))), "3 > 1 = 2"),
    ],
)
def test_a_judgement_is_described_in_the_numbers_that_were_shown(
    order: tuple[int, ...], judgement: Judgement, text: str
) -> None:
    assert judgement_text(item(*"abc"[: len(order)], order=order), judgement) == text


def test_facts_are_shown_on_the_side_that_they_belong_to() -> None:
    origins = (
        Origin(source="run", run="quickstart-0001", iteration=3, writer="policy", checkpoint="step-000002"),
        Origin(source="pairs.jsonl", writer="reference"),
    )
    columns = {"scores": [0.5, None], "lengths": [30, 4], "subject": "sky", "other": [1, 2, 3]}
    one = item("aaaaa", "bbb", order=(1, 0), origins=origins, columns=columns)
    assert completion_facts(one) == [
        "reference, 3 chars, pairs.jsonl",
        "policy, iteration 3, score 0.50, 5 chars, quickstart-0001",
    ]
    assert completion_facts(item("a", "b")) == ["", ""]
    assert completion_facts(item("a", "b", columns={"lengths": [30, 4]})) == ["length 30", "length 4"], (
        "as a file has them"
    )
    both = [Origin(source="run", run="quickstart-0001", writer="policy", checkpoint=f"step-{n}") for n in (1, 2)]
    assert completion_facts(item("a", "b", origins=tuple(both))) == ["policy, step-1", "policy, step-2"], "of one run"


def test_facts_about_a_completion_that_is_to_be_judged_again_would_give_it_away() -> None:
    one = item("a", "b")
    label = Preference(comparison=one.comparison, judgement=Judgement.chosen("a"), id=1)
    judged = SessionItem(position=0, item=one, label=label)
    chat = [{"role": "assistant", "content": "b"}]
    for again in (item("a", "b"), item("b", "c"), item("c", "a"), item("c", chat), item("c", " b ")):
        assert last_line(judged, SessionItem(position=1, item=again), 80) == ""
    for other in (SessionItem(position=1, item=item("c", "d")), None):
        assert last_line(judged, other, 80).startswith("last: 1 is better")
