"""The search line: the conditions that it understands, and one-line errors that say how to write them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.run.sample_query import EXAMPLES, Condition, parse_query


def either(text: str, negated: bool = False) -> Condition:
    return Condition("either", "contains", text, negated)


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("joy", either("joy")),
        ('"the sky"', either("the sky")),
        ('-"the sky"', either("the sky", True)),
        (r'"say \"hi\" to C:\\n"', either(r'say "hi" to C:\n')),
        ('"score>0.5"', either("score>0.5")),
        ("12:30", either("12:30")),
        ("--joy", either("-joy", True)),
        ("score>0.5", Condition("score", ">", 0.5)),
        ("score<=5.", Condition("score", "<=", 5.0)),
        ("SCORE=1", Condition("score", "=", 1.0)),
        ("-score <=0.5", Condition("score", "<=", 0.5, True)),
        ("kl<=10", Condition("kl", "<=", 10)),
        ("len>20", Condition("length", ">", 20)),
        ("prompt:sky", Condition("prompt", "contains", "sky")),
        ('-prompt:"the sky"', Condition("prompt", "contains", "the sky", True)),
        ("text:a:b", Condition("completion", "contains", "a:b")),
        ("stop:STOP", Condition("truncated", "=", False)),
        ("-stop:length", Condition("truncated", "=", True, True)),
        ("-is:MARKED", Condition("marked", "=", True, True)),
        ("\udcff", either(r"\udcff")),
    ],
)
def test_a_condition_is_understood_as_it_is_written(text: str, condition: Condition) -> None:
    assert parse_query(text) == (condition,)


@pytest.mark.parametrize("text", ["", " ", "\t\n "])
def test_an_empty_line_has_no_conditions(text: str) -> None:
    assert parse_query(text) == ()


def test_conditions_are_separated_by_spaces_in_any_order() -> None:
    text = '  score>0.5 kl<=10\tlen > 20 stop:length prompt:"the sky" is:marked joy > pain '
    assert parse_query(text) == (
        Condition("score", ">", 0.5),
        Condition("kl", "<=", 10),
        Condition("length", ">", 20),
        Condition("truncated", "=", True),
        Condition("prompt", "contains", "the sky"),
        Condition("marked", "=", True),
        either("joy"),
        either(">"),
        either("pain"),
    )


def test_the_examples_are_understood_and_show_every_kind_of_condition() -> None:
    conditions = [parse_query(example)[0] for example in EXAMPLES]
    numbers, texts = ("score", "kl", "length", "iteration", "prompt_index"), ("prompt", "completion", "either")
    assert {condition.field for condition in conditions} == {*numbers, *texts, "truncated", "marked", "unscored"}
    assert parse_query(" ".join(EXAMPLES)) == tuple(conditions)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("scroe>0.5", "unknown field scroe: did you mean score?"),
        ("xyzzy:1", "unknown field xyzzy: the fields are score, kl, "),
        ("http://sky", "quote it to search for the text"),
        ("score>", "score> needs a number: write score>0.5"),
        ("score>nan", "nan is not a number"),
        ("kl:3", "kl is compared with a number: write kl<=10"),
        ("score!=1", "score!=: use > >= < <= or =, and -score=1 for unequal"),
        ("stop:foo", "stop:foo: write stop:stop or stop:length"),
        ("stop=length", "stop is not a number: write stop:length"),
        ("prompt=sky", 'prompt is not a number: write prompt:"the sky"'),
        ("prompt:", 'prompt: needs a text: write prompt:"the sky"'),
        ('joy "the sky', 'unclosed quote: add a closing "'),
        ('score>"', "unclosed quote"),
        ("joy -", "missing text"),
    ],
)
def test_a_line_that_is_not_understood_is_reported_with_the_way_out(text: str, reported: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reported)):
        parse_query(text)


@given(st.text(st.characters() | st.sampled_from('"\\-:<>= scorekltxp'), max_size=40))
def test_any_line_is_understood_or_refused_in_one_line(text: str) -> None:
    problem = "none"
    try:
        parse_query(text)
    except ValueError as error:
        problem = str(error)
    assert problem.splitlines() == [problem]


@pytest.mark.parametrize("text", ['stop:"a\nb"', 'is:"a\u2028b"', 'score>"1\x1b2"'])
def test_control_characters_are_made_visible_in_errors(text: str) -> None:
    with pytest.raises(ValueError, match=r"write") as error:
        parse_query(text)
    assert str(error.value).isprintable()


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_text_can_be_searched_for_between_quotes(text: str) -> None:
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    assert parse_query(f'joy "{quoted}"-text:"{quoted}" ') == (
        either("joy"),
        either(text),
        Condition("completion", "contains", text, True),
    )
