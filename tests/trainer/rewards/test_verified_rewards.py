"""Rewards that check an answer: mathematics, multiple choice, JSON and tags, each with the reason of its score."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest

from trainer.config.schema import RewardConfig
from trainer.errors import RewardError
from trainer.rewards import RewardInput, build_rewards, load_functions

APPLIES_NOT = math.nan
DEEP = "[" * 100_000
MAN = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def checked(kind: str, completion: str, columns: dict[str, Any], **settings: Any) -> tuple[float, str]:
    """Return score and reason of one response."""
    rewards = build_rewards(RewardConfig(sources=[{"kind": kind, **settings}]))
    result = rewards([RewardInput("Prompt", completion, [], columns, False)])
    assert result.parts[kind] == pytest.approx(result.scores, nan_ok=True)
    return result.scores[0], result.extra[kind][0]


MATH = [
    ("3/4", r"so it is \boxed{0.75}", 1, "expected 3/4, found 0.75"),
    ("3/4", r"so it is \boxed{0.7}", 0, "expected 3/4, found 0.7"),
    ("3/4", r"\boxed{\frac{3}{4}}", 1, r"found \frac{3}{4}"),
    ("3/4", "it is 3/4", 0, r"expected 3/4, found no \boxed{}"),
    ("3/4", r"\boxed{3/4", 0, r"found no \boxed{}"),  # cut short
    ("3/4", r"\boxed{3/4} or rather \boxed{7}", 0, "found 7"),  # the last one counts
    ("3/4", r"\boxed{}", 0, "found"),
    ("5 cm", r"\boxed{5\,\text{cm}}", 1, "expected 5 cm"),
    ("5", r"\boxed{5 \text{ cm}}", 1, "expected 5"),
    ("1,000", r"\boxed{1000}", 1, "expected 1,000"),
    ("$10", r"\boxed{\$10}", 1, "found"),
    (r"2\sqrt{3}", r"\boxed{\sqrt{12}}", 1, "found"),
    ("-3", r"\boxed{3}", 0, "expected -3, found 3"),
    ("3", r"\boxed{1, 2, 3}", 0, "expected 3, found 1, 2, 3"),  # several guesses are not an answer
    ("3", r"\boxed{1 \text{ or } 3}", 0, "expected 3"),
    (r"\{1, 2\}", r"\boxed{2, 1}", 1, "found 2, 1"),
    (72, r"\boxed{72}", 1, "expected 72"),
    ("She sold 48/2 = 24 clips.\n#### 72", r"\boxed{72}", 1, "expected 72, found 72"),  # as GSM8K gives answers
    (r"Thus $x = \boxed{\frac{1}{2}}$.", r"\boxed{0.5}", 1, r"expected \frac{1}{2}, found 0.5"),  # as MATH does
    (None, r"\boxed{72}", APPLIES_NOT, "no reference in 'answer'"),
    ("", r"\boxed{72}", APPLIES_NOT, "no reference in 'answer'"),
    ("7", r"\boxed{" + "1" * 5000 + "}", 0, "found 5,000 characters"),
    ("7", r"\boxed{\text{__import__('os').abort()}}", 0, "expected 7"),
    ("7", r"\boxed{9^{9^{9^9}}}", 0, "expected 7, cannot compare in 5 s: 9^{9^{9^9}}"),
    ("7", r"\boxed{7}", 1, "expected 7, found 7"),  # after the process that compares has ended
]


def test_an_answer_counts_if_the_last_box_equals_the_reference_off_the_main_thread_too() -> None:
    found: list[tuple[float, str]] = []

    def score() -> None:
        found.extend(checked("math", completion, {"answer": reference}) for reference, completion, *_ in MATH)

    worker = threading.Thread(target=score)
    worker.start()
    worker.join()
    assert [score for score, _ in found] == pytest.approx([score for _, _, score, _ in MATH], nan_ok=True)
    for (_, reason), (*_, wanted) in zip(found, MATH, strict=True):
        assert wanted in reason


@pytest.mark.parametrize(
    ("reference", "completion", "score", "reason"),
    [
        ("B", "B", 1, "expected B, found B"),
        ("b", "(B) Paris", 1, "expected B, found B"),
        ("B", "**B.**", 1, "found B"),
        ("B", "A city cannot be it. The answer is (B).", 1, "found B"),
        ("B", "Answer: **C**", 0, "expected B, found C"),
        ("B", r"The answer is A. No: \boxed{\text{B}}", 1, "found B"),
        ("B", "<think>A or B</think><answer> B) </answer>", 1, "found B"),
        ("B", "Answer: A. Answer: B. Answer: C", 0, "found C"),
        ("B", "A, B, C and D are all fine", 0, "found no choice"),
        ("A", "A city of many names", 0, "found no choice"),
        ("A", "the answer is a city", 0, "found no choice"),
        ("B", "", 0, "found no choice"),
        (1, "B", 1, "expected B, found B"),  # the index of a choice, as in MMLU
        (None, "B", APPLIES_NOT, "no letter in 'answer'"),
        (True, "B", APPLIES_NOT, "no letter in 'answer'"),
        ("Paris", "B", APPLIES_NOT, "no letter in 'answer'"),
    ],
)
def test_a_choice_counts_where_the_response_says_that_it_is_one(
    reference: Any, completion: str, score: float, reason: str
) -> None:
    found = checked("choice", completion, {"answer": reference})
    assert found[0] == pytest.approx(score, nan_ok=True)
    assert reason in found[1]


@pytest.mark.parametrize(
    ("completion", "columns", "settings", "score", "reason"),
    [
        ('{"name": "Ada", "age": 36}', {}, {}, 1, "JSON as expected"),
        ('Here:\n```json\n{"name": "Ada", "age": 36}\n```', {}, {}, 1, "JSON as expected"),
        ('{"name": "Ada", "age": -1}', {}, {}, 0, "$.age: -1 is less than the minimum of 0"),
        ('{"name": "Ada"}', {}, {}, 0, "$: 'age' is a required property"),
        ('Here: {"name": "Ada", "age": 36}', {}, {}, 0, "no JSON: Expecting value"),
        ("", {}, {}, 0, "no JSON"),
        ("NaN", {}, {"json_schema": "{}"}, 0, "no JSON: NaN is not JSON"),
        ("9" * 5000, {}, {"json_schema": "{}"}, 0, "no JSON"),
        (DEEP, {}, {"json_schema": "{}"}, 0, "JSON nested too deeply"),
        ("[" * 400 + "]" * 400, {}, {"json_schema": '{"items": {"$ref": "#"}}'}, 0, "JSON nested too deeply"),
        ("1", {}, {"json_schema": '{"$ref": "#"}'}, 0, "JSON nested too deeply"),
        ('{"age": 36.0}', {"gold": '{"age": 36}'}, {"reference": "gold", "json_schema": "{}"}, 1, "JSON as expected"),
        (
            '{"age": 37}',
            {"gold": {"age": 36}},
            {"reference": "gold", "json_schema": "{}"},
            0,
            'expected {"age": 36}, f',
        ),
        ("1", {"gold": True}, {"reference": "gold", "json_schema": "{}"}, 0, "expected true, found 1"),
        ("1", {"gold": "one"}, {"reference": "gold", "json_schema": "{}"}, APPLIES_NOT, "no JSON in 'gold'"),
        ("1", {}, {"reference": "gold", "json_schema": "{}"}, APPLIES_NOT, "no JSON in 'gold'"),
    ],
)
def test_json_counts_if_it_fits_the_schema_and_equals_the_reference(
    completion: str, columns: dict[str, Any], settings: dict[str, Any], score: float, reason: str
) -> None:
    found = checked("json", completion, columns, **{"json_schema": json.dumps(MAN), **settings})
    assert found[0] == pytest.approx(score, nan_ok=True)
    assert reason in found[1]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ('{"type": "nonsense"}', "$.type: 'nonsense' is not valid"),
        ('{"pattern": "("}', "$.pattern: '(' is not a 'regex'"),
        ('{"properties": {"a": {"$ref": "#/nowhere"}}}', "'/nowhere' does not exist"),
        ('{"items": {"$ref": "https://example.com/a.json"}}', "https://example.com/a.json"),
        ('{"type": ', "Expecting value"),
        ("missing.json", "No such file"),
        ("list.json", "must be a JSON object"),
    ],
)
def test_a_schema_that_is_not_valid_is_reported_before_the_training(schema: str, reason: str) -> None:
    Path("list.json").write_text("[]")
    with pytest.raises(RewardError) as caught:
        load_functions(RewardConfig(sources=[{"kind": "json", "json_schema": schema}]))
    assert "the JSON Schema" in str(caught.value)
    assert reason in str(caught.value)


def test_a_schema_can_be_a_file() -> None:
    Path("man.json").write_text(json.dumps(MAN))
    assert checked("json", '{"name": "Ada", "age": 36}', {}, json_schema="man.json")[0] == 1


@pytest.mark.parametrize(
    ("completion", "settings", "score", "reason"),
    [
        ("<think>2 + 2</think>\n<answer>4</answer>\n", {}, 1, "the tags are right"),
        ("<think>2 + 2</think><answer></answer>", {}, 0, "nothing in <answer>"),
        ("<answer>4</answer><think>2 + 2</think>", {}, 0, "text before <think>"),
        ("<think>2 + 2<answer>4</answer>", {}, 0, "no </think>"),
        ("<think>a</think><think>b</think><answer>4</answer>", {}, 0, "text before <answer>"),
        ("<think>a<think>b</think><answer>4</answer>", {}, 0, "<think> inside <think>"),
        ("<think>a</think><answer>4</answer> I hope", {}, 0, "text after </answer>"),
        ("4", {}, 0, "no <think>"),
        ("", {}, 0, "no <think>"),
        ("2 + 2</think><answer>4</answer>", {"opened": True}, 1, "the tags are right"),
        ("<plan>a</plan>", {"tags": ["plan"]}, 1, "the tags are right"),
    ],
)
def test_tags_count_each_once_in_order_and_alone(
    completion: str, settings: dict[str, Any], score: float, reason: str
) -> None:
    assert checked("format", completion, {}, **settings) == (score, reason)


@pytest.mark.parametrize("kind", ["math", "choice"])
def test_a_column_that_the_data_lacks_is_reported_before_the_training(kind: str) -> None:
    config = RewardConfig(sources=[{"kind": kind, "answer": "gold"}])
    with pytest.raises(RewardError, match=f"'{kind}' needs 'gold', which is not a column of the data; columns: answer"):
        load_functions(config, columns=["answer"])


def test_two_sources_of_a_kind_and_what_hostile_text_says_are_each_shown_in_one_bounded_line() -> None:
    sources = [{"kind": "choice"}, {"kind": "choice", "answer": "second"}]
    row = RewardInput("Prompt", "B", [], {"answer": "B", "second": "C"}, False)
    extra = build_rewards(RewardConfig(sources=sources))([row]).extra
    assert extra == {"choice": ["expected B, found B"], "choice#2": ["expected C, found B"]}
    reason = checked("math", "\\boxed{" + "1\n" * 400 + "}", {"answer": "2"})[1]
    assert "\n" not in reason
    assert len(reason) <= 200


def test_a_missing_library_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for kind in ("math", "json"):
        with pytest.raises(RewardError, match=r"pip install 'ppo-workbench\[verify\]'"):
            build_rewards(RewardConfig(sources=[{"kind": kind}]))
