"""Texts of an item as a labeller sees them, and the judgement of each key, in the item's own order."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from label_session import item

from trainer.preferences.records import Judgement, Origin, Preference, SessionItem
from workbench.labelling.texts import (
    Ranking,
    Turn,
    completion_facts,
    judged,
    judgement_text,
    reveals,
    texts_of,
)


def labelled(one: Any, judgement: Judgement, position: int = 0) -> SessionItem:
    label = Preference(comparison=one.comparison, judgement=judgement, id=1)
    return SessionItem(position=position, item=one, label=label)


def plain(text: str) -> tuple[Turn, ...]:
    return (Turn("", text),)


def test_completions_are_in_the_order_of_the_item() -> None:
    assert texts_of(item("a", "b", "c", order=(2, 0, 1))).completions == (plain("c"), plain("a"), plain("b"))


def test_messages_are_shown_by_role() -> None:
    chat = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
    answer = [{"role": "assistant", "content": "one"}, {"role": "user", "content": "more"}]
    seen = texts_of(item(answer, [{"role": "assistant", "content": "two"}], prompt=chat))
    assert seen.prompt == (Turn("system", "be kind"), Turn("user", "hi"))
    assert seen.completions == ((Turn("assistant", "one"), Turn("user", "more")), (Turn("assistant", "two"),))


def test_a_role_is_left_out_where_every_completion_is_one_message_of_the_assistants() -> None:
    one, two = ([{"role": "assistant", "content": text}] for text in ("one", "two"))
    assert texts_of(item(one, two)).completions == (plain("one"), plain("two"))
    assert texts_of(item(one, "two")).completions == ((Turn("assistant", "one"),), plain("two"))


@pytest.mark.parametrize(
    ("completions", "alike"),
    [
        (("a b", "a b"), "identical"),
        (("a b", "a  b"), "spaces"),
        (("a b\n", "a b"), "spaces"),
        (("", " "), "spaces"),
        (("a b", "a c"), ""),
        (("a", "a", "b"), ""),
        (("a", "a", "a"), "identical"),
    ],
)
def test_identical_completions_are_recognised(completions: tuple[str, ...], alike: str) -> None:
    assert texts_of(item(*completions)).alike == alike


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_ranking_is_of_the_texts_that_were_seen_whatever_their_order(order: tuple[int, ...]) -> None:
    one = item("a", "b", "c", order=order)
    judgement = judged(one, [[2], [0, 1]], strength=3)
    seen = [one.comparison.completions[place] for place in order]
    best, others = judgement.ranking
    assert one.comparison.completions[best[0]] == seen[2]
    assert {one.comparison.completions[place] for place in others} == set(seen[:2])
    assert (judgement.order_shown, judgement.strength, judgement.verdict) == (order, 3, "ranked")


def typed(marks: str, count: int) -> Ranking:
    ranking = Ranking()
    for mark in marks:
        ranking = ranking.taken_back() if mark == "<" else ranking.typed(mark, count)
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
    ranking = typed(marks, 3)
    assert ranking.groups == groups
    assert str(ranking) == text


@given(st.text("123456789=<", max_size=30), st.integers(2, 9))
def test_typing_ranks_no_completion_twice_and_none_that_does_not_exist(marks: str, count: int) -> None:
    ranking = typed(marks, count)
    places = [place for group in ranking.groups for place in group]
    assert len(places) == len(set(places))
    assert set(places) <= set(range(count))
    assert ranking.is_whole(count) == (len(places) == count)


def test_a_judgement_is_described_in_the_numbers_that_were_shown() -> None:
    pair, three = item("a", "b", order=(1, 0)), item("a", "b", "c", order=(2, 0, 1))
    assert judgement_text(pair, judged(pair, [[0], [1]])) == "1 is better"
    assert judgement_text(pair, judged(pair, [[1], [0]], strength=3)) == "2 is strongly better"
    assert judgement_text(pair, judged(pair, [[0, 1]])) == "tie"
    assert judgement_text(pair, judged(pair, verdict="both_bad")) == "both bad"
    assert judgement_text(three, judged(three, verdict="both_bad")) == "all bad"
    assert judgement_text(three, judged(three, verdict="skip")) == "skipped"
    assert judgement_text(three, judged(three, [[2], [0, 1]])) == "3 > 1 = 2"


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


def test_a_run_that_wrote_both_is_not_named_and_a_checkpoint_only_without_an_iteration() -> None:
    both = [Origin(source="run", run="quickstart-0001", writer="policy", checkpoint=f"step-{n}") for n in (1, 2)]
    assert completion_facts(item("a", "b", origins=tuple(both))) == ["policy, step-1", "policy, step-2"]


def test_facts_about_a_completion_that_is_to_be_judged_again_would_give_it_away() -> None:
    judged = labelled(item("a", "b"), Judgement.chosen("a"))
    chat = [{"role": "assistant", "content": "b"}]
    for again in (item("a", "b"), item("b", "c"), item("c", "a"), item("c", chat), item("c", " b ")):
        assert reveals(judged, SessionItem(position=1, item=again))
    assert not reveals(judged, SessionItem(position=1, item=item("c", "d")))
    assert not reveals(judged, None)
