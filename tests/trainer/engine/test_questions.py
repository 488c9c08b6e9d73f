"""Questions and answers go through JSON unchanged, and anything else is refused in one line."""

from __future__ import annotations

import dataclasses
import json
import math
from fractions import Fraction
from typing import Any

import pytest
from scripted_run import answered

from trainer.questions import Answer, Question, from_json, to_json

QUESTION = Question(
    prompt=[{"role": "user", "content": "Où ? \x1b[31m \u2028"}],
    prefix=[5, 6],
    columns={"target": 3, "nested": {"a": [1, None]}},
    writer="reference",
    count=3,
    temperature=0.5,
    max_new_tokens=9,
    seed=7,
)


@pytest.mark.parametrize("question", [QUESTION, Question(prompt="Once"), Question(prompt_tokens=[1, 2])])
def test_a_question_survives_json(question: Question) -> None:
    assert from_json(Question, to_json(question)) == question


def test_a_non_finite_number_is_null_in_json_and_nan_when_read_back() -> None:
    (completion,) = answered(Question(prompt="Once")).completions
    completion = dataclasses.replace(
        completion, score=math.nan, parts={"a": math.inf, "b": 0.5}, logprobs=[-0.25, math.nan], ref_logprobs=[-1.5, -2]
    )
    answer = Answer(writer="policy", iteration=3, prompt="Once", completions=[completion], seconds=1.5, problem="no")
    values = json.loads(to_json(answer), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert values["completions"][0]["parts"] == {"a": None, "b": 0.5}
    (back,) = from_json(Answer, json.dumps(values)).completions
    assert math.isnan(back.score)
    assert math.isnan(back.parts["a"])
    assert (back.parts["b"], back.logprobs[0], back.ref_logprobs) == (0.5, -0.25, [-1.5, -2])
    assert math.isnan(back.logprobs[1])
    assert from_json(Answer, json.dumps(values | {"completions": []})) == dataclasses.replace(answer, completions=[])


def test_a_value_that_json_lacks_becomes_text() -> None:
    question = Question(prompt="a", columns={"path": Fraction(1, 3), "size": math.inf})
    assert from_json(Question, to_json(question)).columns == {"path": "1/3", "size": None}


@pytest.mark.parametrize(
    ("values", "reported"),
    [
        (None, "question: Input should be an object"),
        ([1], "question: Input should be an object"),
        ({"promt": "a"}, "question.promt: Unexpected keyword argument"),
        ({"prompt": 3}, "question.prompt.str: Input should be a valid string"),
        ({"prompt": "a", "count": "3"}, "question.count: Input should be a valid integer"),
        ({"prompt": "a", "prefix": [1, "2"]}, "question.prefix.1: Input should be a valid integer"),
        ({"prompt": "a", "writer": "critic"}, "question.writer: Input should be 'policy' or 'reference'"),
        ({"prompt": [{"role": 1}]}, "question.prompt.str: Input should be a valid string"),
        ({"prompt": "a", "temperature": "hot"}, "question.temperature: Input should be a valid number"),
    ],
)
def test_anything_but_a_question_is_refused_in_one_line(values: Any, reported: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as refusal:
        from_json(Question, json.dumps(values))
    assert reported in str(refusal.value)


@pytest.mark.parametrize("values", [{}, {"completions": [3]}, {"completions": [{}]}, "no", {"completions": {}}])
def test_anything_but_an_answer_is_refused(values: Any) -> None:
    with pytest.raises(ValueError, match="answer"):
        from_json(Answer, json.dumps(values))
