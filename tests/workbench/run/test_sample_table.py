"""The search line, and a table of samples that finds, sorts and counts like a plain loop."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Collection
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.run.sample_query import EXAMPLES, Condition, Order, Query, parse_query
from workbench.run.sample_table import Sample, SampleKey, SampleTable, robust_z, table_schema


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


TEXTS = st.text(st.sampled_from("aAäÄ.(\\\n🎉\0"), max_size=6)
WORDS = st.text(st.sampled_from("aAäÄ.(\\\n🎉\0"), max_size=2)
NUMBERS = st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 0.0, 0.5, 1.0, -1.0, 3.0])


def sample(iteration: int, row: int, **changes: Any) -> Sample:
    values: dict[str, Any] = {
        "prompt": "Once upon a time",
        "completion": " the band played",
        "score": 0.5,
        "kl": 1.0,
        "length": 3,
        "truncated": False,
        "prompt_index": row,
    }
    return Sample(key=SampleKey(iteration, row), **values | changes)


def table_of(samples: list[Sample]) -> SampleTable:
    rows = [
        {"iteration": one.key.iteration, "row": one.key.row}
        | {name: getattr(one, name) for name in table_schema().names[2:]}
        for one in samples
    ]
    return SampleTable(pa.Table.from_pylist(rows, schema=table_schema()))


def same(found: Collection[Sample], expected: Collection[Sample]) -> None:
    np.testing.assert_equal([_plain(one) for one in found], [_plain(one) for one in expected])


def _plain(one: Sample) -> tuple[Any, ...]:
    return tuple(getattr(one, name) for name in Sample.__slots__)


@st.composite
def batches(draw: st.DrawFn) -> list[Sample]:
    """Return the samples of a few iterations, newest first."""
    return [
        sample(
            iteration,
            row,
            prompt=draw(TEXTS),
            completion=draw(TEXTS),
            score=draw(NUMBERS),
            kl=draw(NUMBERS),
            length=draw(st.none() | st.integers(0, 3)),
            truncated=draw(st.booleans()),
            prompt_index=draw(st.integers(-1, 2)),
        )
        for iteration in range(draw(st.integers(0, 3)), 0, -1)
        for row in range(draw(st.integers(0, 5)))
    ]


CONDITIONS: st.SearchStrategy[Condition] = st.one_of(
    st.builds(
        Condition,
        st.sampled_from(["score", "kl", "length", "iteration", "prompt_index"]),
        st.sampled_from([">", ">=", "<", "<=", "="]),
        NUMBERS.filter(lambda value: not math.isnan(value)),
        st.booleans(),
    ),
    st.builds(
        Condition, st.sampled_from(["prompt", "completion", "either"]), st.just("contains"), TEXTS, st.booleans()
    ),
    st.builds(Condition, st.just("truncated"), st.just("="), st.booleans(), st.booleans()),
    st.builds(Condition, st.sampled_from(["marked", "unscored"]), st.just("="), st.just(True), st.booleans()),
)
QUERIES = st.lists(CONDITIONS, max_size=2).map(tuple)
ORDERS = st.builds(Order, st.sampled_from(["batch", "score", "kl", "length"]), st.booleans())


def holds(condition: Condition, one: Sample, marked: Collection[SampleKey]) -> bool:
    known: dict[str, Any] = {name: getattr(one, name) for name in Sample.__slots__}
    known |= {"iteration": one.key.iteration, "marked": one.key in marked, "unscored": math.isnan(one.score)}
    value = condition.value
    if condition.comparison == "contains":
        texts = [one.prompt, one.completion] if condition.field == "either" else [known[condition.field]]
        held = any(re.search(re.escape(str(value)), each, re.IGNORECASE) for each in texts)
    else:
        x = math.nan if known[condition.field] is None else known[condition.field]
        held = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "=": operator.eq}[
            condition.comparison
        ](x, value)
    return held != condition.negated


def selected(samples: list[Sample], query: Query, order: Order, marked: Collection[SampleKey]) -> list[Sample]:
    found = [one for one in samples if all(holds(condition, one, marked) for condition in query)]
    if order.by == "batch":
        return found[::-1] if order.descending else found

    def rank(one: Sample) -> tuple[bool, float]:
        value = getattr(one, order.by)
        if value is None or math.isnan(value):
            return True, 0.0
        return False, -value if order.descending else value

    return sorted(found, key=rank)


@given(batches(), QUERIES, ORDERS, st.sets(st.builds(SampleKey, st.integers(1, 3), st.integers(0, 4))))
def test_a_selection_is_what_a_plain_loop_finds_and_sorts(
    samples: list[Sample], query: Query, order: Order, marked: set[SampleKey]
) -> None:
    same(table_of(samples).select(query, order, marked), selected(samples, query, order, marked))


@given(batches(), QUERIES, ORDERS, QUERIES, ORDERS)
def test_a_selection_is_searched_and_joined_like_any_table(
    samples: list[Sample], first: Query, order: Order, second: Query, other_order: Order
) -> None:
    once = selected(samples, first, order, ())
    table = table_of(samples).select(first, order)
    same(table.select(second, other_order), selected(once, second, other_order, ()))
    same(SampleTable.joined([table, table_of(samples)]), once + samples)
    same(SampleTable.joined([table, table_of(samples)]).compact(), once + samples)


@given(batches())
def test_a_table_is_a_sequence_of_its_samples(samples: list[Sample]) -> None:
    table = table_of(samples)
    assert len(table) == len(samples)
    same(table, samples)
    same(table[1:-1], samples[1:-1])
    same(table[::-2], samples[::-2])
    for place in range(-len(samples), len(samples)):
        same([table[place]], [samples[place]])
    for place in (len(samples), -len(samples) - 1):
        with pytest.raises(IndexError):
            table[place]
    assert table.keys == [one.key for one in samples]
    np.testing.assert_equal(table.scores(), [one.score for one in samples])


def test_a_sample_is_found_by_its_key_at_its_present_position() -> None:
    table = table_of([sample(2, 0), sample(2, 1, score=0.9), sample(1, 0), sample(1, 1, score=0.1)])
    assert [table.position_of(key) for key in table.keys] == [0, 1, 2, 3]
    ordered = table.select((), Order("score"))
    assert ordered.position_of(SampleKey(1, 1)) == 0
    assert ordered.position_of(SampleKey(2, 1)) == 3
    missing = [SampleKey(3, 0), SampleKey(2, 2), SampleKey(10**30, -1)]
    assert [table.position_of(key) for key in missing] == [None, None, None]
    assert table.select(parse_query("score<0.5"), Order()).position_of(SampleKey(2, 0)) is None


def test_the_summary_counts_samples_and_leaves_out_what_is_not_finite() -> None:
    samples = [sample(1, 0, score=-0.5, kl=2.0), sample(1, 1, score=1.0), sample(1, 2, score=math.nan, kl=math.inf)]
    assert table_of(samples).summary() == "3 samples   score 0.25, -0.50 to 1.00   1 not scored   KL 1.5 nats"
    assert table_of(samples[2:]).summary() == "1 sample   1 not scored"
    assert table_of([]).summary() == "0 samples"
    assert table_of(samples[:1]).summary(of=3) == "1 of 3 samples   score -0.50, -0.50 to -0.50   KL 2.0 nats"
    assert table_of([]).summary(of=1) == "0 of 1 sample"
    many = table_of([sample(1, row, score=math.nan) for row in range(1_234)])
    assert many.summary() == "1,234 samples   1,234 not scored   KL 1.0 nats"


@pytest.mark.parametrize("name", ["score", "kl", "length"])
def test_a_sample_far_off_its_own_iteration_is_an_outlier(name: str) -> None:
    low = [sample(2, row, **{name: value}) for row, value in enumerate([10, 11, 12, 13, 14, 15, 40])]
    high = [sample(1, row, **{name: value}) for row, value in enumerate([40, 41, 42, 43, 44, 45, 10])]
    table = table_of(low + high)
    assert table.outliers() == [6, 13]
    assert [table[place].key for place in table.outliers()] == [SampleKey(2, 6), SampleKey(1, 6)]


def test_an_outlier_stays_one_in_every_selection_it_is_in() -> None:
    table = table_of([sample(1, row, kl=kl) for row, kl in enumerate([1.0, 1.1, 0.9, 1.2, 0.8, 90.0, 91.0])])
    assert table.outliers() == [5, 6]
    assert table.select(parse_query("kl>50"), Order("kl", descending=True)).outliers() == [0, 1]
    assert table.select((), Order("kl", descending=True)).outliers() == [0, 1]
    assert table.select(parse_query("kl<50"), Order()).outliers() == []


def slow_robust_z(values: list[float]) -> list[float]:
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return values
    middle = median(finite)
    off = [abs(value - middle) for value in finite]
    scale = median(off) / 0.6745 or 1.253314 * sum(off) / len(off)
    return [((value - middle) / scale if scale else 0.0) if math.isfinite(value) else value for value in values]


@given(st.lists(st.lists(st.floats(-1e6, 1e6) | st.sampled_from([0.0, 1.0, math.nan, math.inf]), max_size=9)))
def test_the_robust_z_of_groups_is_that_of_each_group_alone(groups: list[list[float]]) -> None:
    placed = [(value, number) for number, group in enumerate(groups) for value in group]
    placed = placed[::2] + placed[1::2]  # members of a group need not be neighbours
    values, numbers = np.array([value for value, _ in placed]), np.array([number for _, number in placed], dtype=int)
    z = robust_z(values, numbers)
    for number in range(len(groups)):
        mine = numbers == number
        np.testing.assert_allclose(z[mine], slow_robust_z(values[mine].tolist()), rtol=1e-9)
