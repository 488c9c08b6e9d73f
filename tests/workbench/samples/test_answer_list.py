"""Completions in a list: the facts of each, side by side or stacked, and no text outside its lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from completions import HOSTILE, completion
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from trainer.questions import Answer, Writer, WrittenResponse
from workbench.kit.drawing import wrapped
from workbench.samples.ask_screen import AskedRequest, response_facts
from workbench.samples.ask_screen import request_lines as lines_of
from workbench.text import Line, plain, visible


def answer(*completions: WrittenResponse, writer: Writer = "policy", problem: str = "") -> Answer:
    return Answer(writer=writer, iteration=40, prompt="", completions=[*completions], seconds=3.2, problem=problem)


def request(*answers: Answer, **changes: Any) -> AskedRequest:
    known: dict[str, Any] = {"number": 1, "title": "sample freely", "answers": {one.writer: one for one in answers}}
    return AskedRequest(**known | changes)


def request_lines(of: AskedRequest, width: int, **more: bool) -> list[Line]:
    return lines_of(of, width, beside=width >= 96, **more)


def facts(one: WrittenResponse, writer: Writer = "policy", compared: float = math.nan) -> str:
    return "  ".join(text for text, _ in response_facts(one, writer, compared))


def text_of(lines: Sequence[Line]) -> str:
    return "\n".join(plain(line) for line in lines)


def words(lines: Sequence[Line], role: str) -> str:
    return "".join(text for line in lines for text, own in line if own == role)


@pytest.mark.parametrize(
    ("one", "shown"),
    [
        (completion(), "score +0.50  KL 1.2 nats  3 tokens, stop"),
        (completion(tokens=[1], truncated=True), "score +0.50  KL 1.2 nats  1 token ✂ cut short"),
        (completion(logprobs=[math.inf, -math.inf, 0.0]), "score +0.50  KL - nats  3 tokens, stop"),
        (completion(tokens=[], logprobs=[], ref_logprobs=[]), "score +0.50  KL 0.0 nats  0 tokens, stop"),
        (completion(parts={"lexicon": 0.9}), "score +0.50  KL 1.2 nats  3 tokens, stop  lexicon +0.90"),
        (
            completion(parts={"lexicon": 0.5, "a\x1b.py:f": -2.0}),
            "score +0.50  KL 1.2 nats  3 tokens, stop  lexicon +0.50  a␛.py:f -2.00",
        ),
    ],
)
def test_a_completion_is_shown_with_its_numbers_and_with_parts_that_say_more_than_the_score(
    one: WrittenResponse, shown: str
) -> None:
    assert facts(one) == shown
    assert "log π/ref" in facts(one, "reference")


@pytest.mark.parametrize(
    ("score", "compared", "reported"),
    [
        (0.5, 0.25, "▲ +0.25 better"),
        (0.5, 1.5, "▼ -1.00 worse"),
        (0.5, 0.5, "= same score"),
        (math.nan, 0.5, "not scored  KL"),
        (0.5, math.nan, "score +0.50  KL"),
        (math.inf, 0.5, "  KL"),
    ],
)
def test_a_score_is_better_or_worse_than_the_number_it_is_compared_with(
    score: float, compared: float, reported: str
) -> None:
    shown = facts(completion(score=score), compared=compared)
    assert reported in shown
    assert ("better" in shown or "worse" in shown) == (reported[0] in "▲▼")


def test_policy_and_reference_are_side_by_side_where_there_is_room() -> None:
    both = request(answer(completion("by the policy")), answer(completion("by the reference"), writer="reference"))
    wide, narrow = (text_of(request_lines(both, width)).splitlines() for width in (98, 78))
    assert wide[1].split("│")[0].strip().startswith("policy")
    assert wide[1].split("│")[1].strip().startswith("reference")
    (left,), (right,) = ([line for line in wide if text in line] for text in ("by the policy", "by the reference"))
    assert (left.index("by the policy"), right.index("by the reference")) == (0, 47 + len(" │ "))
    assert "│" not in "".join(narrow)
    assert narrow.index("by the policy") < narrow.index("by the reference")


def test_a_column_is_headed_by_writer_and_score() -> None:
    lines = request_lines(request(answer(completion(score=0.5), completion(score=math.nan), completion(score=1.0))), 80)
    assert plain(lines[0]).strip() == "1  sample freely"
    assert plain(lines[1]).strip() == "policy · after 40 iterations · mean score +0.75 · 3.2s"


def test_the_best_score_comes_first_on_request_and_those_without_one_last() -> None:
    scored = [completion(name, score=score) for name, score in [("nan", math.nan), ("low", -1.0), ("high", 2.0)]]
    shown = {
        by_score: words(request_lines(request(answer(*scored)), 80, by_score=by_score), "text")
        for by_score in (False, True)
    }
    assert shown == {False: "nanlowhigh", True: "highlownan"}


def test_the_begun_text_is_not_shown_again_and_an_empty_completion_says_so() -> None:
    lines = request_lines(request(answer(completion("once upon a time"), completion("")), begun="once upon"), 80)
    assert words(lines, "text") == " a time"
    assert "empty response" in text_of(lines)


def test_the_diff_marks_what_only_one_of_the_first_completions_has() -> None:
    both = request(
        answer(completion("a warm day"), completion("unlike")),
        answer(completion("a cold day"), completion("the second"), writer="reference"),
    )
    lines = request_lines(both, 78, diff=True)
    assert (words(lines, "new"), words(lines, "gone")) == ("warm", "cold")
    assert "a warm day" in text_of(lines)
    assert "a cold day" in text_of(lines)
    plainly = request_lines(both, 78)
    assert (words(plainly, "new"), words(plainly, "gone")) == ("", "")
    assert text_of(plainly) == text_of(lines)


def test_the_diff_waits_until_both_have_answered() -> None:
    half = request(answers={"policy": answer(completion("a warm day")), "reference": None})
    lines = request_lines(half, 120, diff=True)
    assert words(lines, "new") == ""
    assert "waiting" in text_of(lines)


def test_a_problem_is_shown_in_place_of_the_answer_and_beside_one_without_a_score() -> None:
    failed = request_lines(request(answer(problem="the run ended [/x]\x1b")), 80)
    assert "✖ the run ended [/x]␛" in text_of(failed)
    assert "waiting" not in text_of(failed)
    unscored = request_lines(request(answer(completion(score=math.nan), problem="rewards.py raised")), 80)
    assert "✖ rewards.py raised" in text_of(unscored)
    assert "so much joy" in text_of(unscored)


@given(st.text(max_size=300), st.integers(4, 130), st.booleans(), st.booleans())
def test_no_line_is_wider_than_the_list_and_none_is_obeyed(text: str, width: int, by_score: bool, diff: bool) -> None:
    long = completion(text + HOSTILE, score=1e300, parts={text: 1.0, "b": 2.0})
    both = request(
        answer(long, problem=text), answer(completion(HOSTILE), writer="reference"), title=text + HOSTILE, compared=0.0
    )
    for line in request_lines(both, width, by_score=by_score, diff=diff):
        assert cell_len(plain(line)) <= width
        assert visible(plain(line)) == plain(line)


@given(st.lists(st.tuples(st.text("ab \n日"), st.sampled_from(["text", "new"]))), st.integers(2, 20))
def test_wrapping_loses_nothing_but_spaces_and_keeps_roles(pieces: list[tuple[str, str]], width: int) -> None:
    lines = wrapped(pieces, width)
    for role in ("text", "new"):
        assert "".join(words(lines, role).split()) == "".join("".join(t for t, own in pieces if own == role).split())
