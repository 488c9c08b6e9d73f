"""Agreement beyond chance, against published libraries and closed cases; and the data card of a store."""

from __future__ import annotations

import math
import random
import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preference_rows import assistant, pair, user

from trainer.confidence import wilson_interval
from trainer.preferences.agreement import cohen_kappa, krippendorff_alpha, measure_agreement, render_data_card
from trainer.preferences.records import Choice, Comparison, Judgement, Origin, Preference

CHOICES: tuple[Choice, ...] = ("a", "b", "tie", "both_bad")

# seed, units, noise, missing: units that observers 0 and 1 both judged, kappa (scikit-learn 1.9.1, cohen_kappa_score),
# its standard error (statsmodels 0.15.0, cohens_kappa), alpha of three observers (krippendorff 0.9.0)
REFERENCE = [
    (0, 50, 0.2, 0.0, 50, 0.543378995434, 0.092239607578, 0.577958027552),
    (1, 200, 0.5, 0.3, 105, 0.340354767184, 0.064908731949, 0.292505986759),
    (2, 30, 0.9, 0.4, 12, 0.094339622642, 0.163045793224, 0.11620294599),
    (3, 1000, 0.1, 0.6, 130, 0.83865248227, 0.040197424126, 0.833588663347),
    (4, 12, 0.3, 0.1, 9, 0.25, 0.207665596573, 0.546875),
]

# Krippendorff 2011, section C: four observers, twelve units, missing values; alpha = 0.743.
WORKED = ["123321412...", "1233224125.3", ".3332342251.", "12332441251."]


def observed(seed: int, units: int, noise: float, missing: float) -> list[list[Choice | None]]:
    """Draw three observers' values of each unit around a truth."""
    draw = random.Random(seed)
    values: list[list[Choice | None]] = []
    for _ in range(units):
        truth = draw.choices(CHOICES, (5, 4, 2, 1))[0]
        row: list[Choice | None] = []
        for _ in range(3):
            absent = draw.random() < missing
            row.append(None if absent else draw.choice(CHOICES) if draw.random() < noise else truth)
        values.append(row)
    return values


def judged(prompt: str, choice: Choice, labeller: str, *, swapped: bool = False) -> Preference:
    """Return a judgement of the same two completions; `swapped` exchanges them, and so the choice."""
    completions = ("one", "two")
    if swapped:
        completions, choice = completions[::-1], {"a": "b", "b": "a"}.get(choice, choice)  # type: ignore[assignment]
    comparison = Comparison(prompt=prompt, completions=completions)
    return Preference(comparison=comparison, judgement=Judgement.chosen(choice, labeller=labeller))


@pytest.mark.parametrize(("seed", "units", "noise", "missing", "n", "kappa", "error", "alpha"), REFERENCE)
def test_kappa_and_alpha_are_those_of_published_libraries(
    seed: int, units: int, noise: float, missing: float, n: int, kappa: float, error: float, alpha: float
) -> None:
    values = observed(seed, units, noise, missing)
    both = [row[:2] for row in values if row[0] and row[1]]
    found = cohen_kappa([row[0] for row in both], [row[1] for row in both])
    assert found.n == n
    assert found[:2] == pytest.approx((kappa, error), abs=1e-10)
    assert krippendorff_alpha([[value for value in row if value] for row in values]) == pytest.approx(alpha, abs=1e-10)


def test_alpha_of_krippendorffs_worked_example() -> None:
    units = [[value for value in unit if value != "."] for unit in zip(*WORKED, strict=True)]
    assert krippendorff_alpha(units) == pytest.approx(0.743, abs=5e-4)


def test_perfect_agreement_is_one_chance_is_zero_and_opposites_are_minus_one() -> None:
    assert cohen_kappa("abab", "abab")[:3] == (1, 0, 1)
    assert krippendorff_alpha(["aa", "bb"]) == 1
    assert cohen_kappa("aabb", "abab").value == 0  # each cell of the table once
    assert cohen_kappa("ab", "ba").value == -1


def test_constant_or_missing_labels_have_no_kappa_and_no_alpha() -> None:
    for first, second in (("aaa", "aaa"), ("", "")):
        kappa = cohen_kappa(first, second)
        assert math.isnan(kappa.value)
        assert all(map(math.isnan, kappa.interval))
        assert math.isnan(krippendorff_alpha(list(zip(first, second, strict=True))))


def test_the_interval_is_1_96_standard_errors_and_stays_within_one() -> None:
    kappa = cohen_kappa("aaabbbabab", "aaabbbabba")
    low, high = kappa.interval
    assert low == pytest.approx(kappa.value - 1.959964 * kappa.standard_error, abs=1e-6)
    assert high == 1 < kappa.value + 1.959964 * kappa.standard_error


@given(st.lists(st.tuples(st.sampled_from(CHOICES), st.sampled_from(CHOICES), st.booleans()), min_size=1))
def test_which_side_a_completion_was_shown_on_changes_nothing(rows: list[tuple[Choice, Choice, bool]]) -> None:
    straight, mixed = [], []
    for number, (first, second, swapped) in enumerate(rows):
        straight += [judged(str(number), first, "ann"), judged(str(number), second, "bob")]
        mixed += [judged(str(number), first, "ann"), judged(str(number), second, "bob", swapped=swapped)]
    assert repr(measure_agreement(mixed)) == repr(measure_agreement(straight))  # NaN equals no NaN
    kappa = cohen_kappa([first for first, _, _ in rows], [second for _, second, _ in rows])
    assert repr(measure_agreement(mixed).pairs[0].kappa) == repr(kappa)


def test_units_judged_by_two_labellers_are_counted_and_skips_are_not() -> None:
    found = measure_agreement(
        [
            judged("1", "a", "ann"),
            judged("1", "a", "bob"),
            judged("2", "b", "ann"),
            judged("2", "b", "bob", swapped=True),
            judged("3", "tie", "ann"),
            judged("3", "skip", "bob"),
            judged("4", "a", "cay"),
        ]
    )
    assert found.labellers == ("ann", "bob", "cay")
    assert (found.units, found.alpha) == (2, 1)
    assert [(pair.first, pair.second, pair.kappa.n) for pair in found.pairs] == [
        ("ann", "bob", 2),
        ("ann", "cay", 0),
        ("bob", "cay", 0),
    ]


def test_repeats_count_within_a_labeller_and_the_last_label_between_labellers() -> None:
    found = measure_agreement(
        [
            judged("1", "a", "ann"),
            judged("1", "a", "ann", swapped=True),
            judged("2", "a", "ann"),
            judged("2", "b", "ann"),
            judged("1", "a", "bob"),
            judged("2", "b", "bob"),
        ]
    )
    ann, bob = found.selves
    assert (ann.labeller, ann.units, ann.observed) == ("ann", 2, 0.5)
    assert ann.alpha == pytest.approx(krippendorff_alpha(["aa", "ab"]))
    assert (bob.units, math.isnan(bob.observed)) == (0, True)
    assert found.pairs[0].kappa[:3] == (1, 0, 1)
    assert (found.units, found.alpha) == (2, 1)


def test_a_ranking_is_compared_completion_by_completion() -> None:
    def ranked(ranking: tuple[tuple[int, ...], ...], labeller: str, completions: str) -> Preference:
        comparison = Comparison(prompt="", completions=tuple(completions))
        return Preference(comparison=comparison, judgement=Judgement(ranking=ranking, labeller=labeller))

    found = measure_agreement(
        [ranked(((0,), (1,), (2,)), "ann", "xyz"), ranked(((2,), (0, 1)), "bob", "zyx")]  # x > z = y
    )
    assert (found.units, found.pairs[0].kappa.observed) == (3, pytest.approx(2 / 3))


def labelled(
    choice: str, *, prompt: str = "p", completions: tuple[str, str] = ("x", "y"), **more: object
) -> Preference:
    comparison = Comparison(prompt=prompt, completions=completions)
    return Preference(comparison=comparison, judgement=Judgement.chosen(choice, **more))  # type: ignore[arg-type]


def section(card: str, heading: str) -> list[list[str]]:
    """Return the cells of the table under a heading; "" is the table at the beginning."""
    text = card.partition(f"## {heading}\n")[2] if heading else card
    text = re.split(r"^## ", text, maxsplit=1, flags=re.MULTILINE)[0]
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")][2:]


def facts(card: str) -> dict[str, str]:
    return {line[0]: line[1] for line in section(card, "")}


def test_the_overview_counts_judgements_comparisons_repeats_and_what_they_say() -> None:
    rows = [
        labelled("a", time=86400.0 * 365, note="n"),
        labelled("b", completions=("y", "x"), time=86400.0 * 365, note="n"),  # the same, with the sides swapped
        labelled("tie", prompt="q"),
        labelled("both_bad", prompt="r"),
        labelled("skip", prompt="s"),
    ]
    assert facts(render_data_card(rows)) == {
        "judgements": "5",
        "comparisons": "4",
        "duplicates": "1",
        "comparisons judged more than once": "1",
        "completions per comparison": "2 (5)",
        "ties": "1 (20.0%)",
        "both bad": "1 (20.0%)",
        "skipped": "1 (20.0%)",
        "the better one was shown first": "-",
        "the longer one is better": "-",
        "characters of the better one, median": "1",
        "characters of the worse one, median": "1",
        "agreement between labellers": "-",
        "agreement with oneself": "(none) 100.0%",
        "with a note": "2",
        "judged": "1971-01-01 to 1971-01-01 (UTC)",
    }


def test_the_side_of_the_better_one_is_counted_where_the_order_shown_is_known() -> None:
    shown = [("a", (0, 1)), ("a", (1, 0)), ("b", (1, 0)), ("b", (1, 0)), ("tie", (0, 1)), ("a", ())]
    rows = [labelled(choice, prompt=str(number), order_shown=order) for number, (choice, order) in enumerate(shown)]
    assert facts(render_data_card(rows))["the better one was shown first"] == "3 (75.0%)"


def test_counts_are_listed_by_source_labeller_choice_strength_flag_and_guidelines() -> None:
    origins = (Origin(source="b.jsonl"), Origin(source="a.jsonl"))
    comparison = Comparison(prompt="p", completions=("x", "y"), origins=origins)
    rows = [
        Preference(comparison=comparison, judgement=Judgement.chosen("a", labeller="bob", strength=3)),
        labelled("b", labeller="ann", flags=("rude", "long"), guidelines="abc"),
        labelled("tie", labeller="ann", flags=("rude",)),
    ]
    card = render_data_card(rows)
    assert section(card, "Sources") == [["(none)", "2"], ["a.jsonl, b.jsonl", "1"]]
    assert section(card, "Labellers") == [["ann", "2"], ["bob", "1"]]
    assert section(card, "Choices") == [["one is better", "2"], ["tie", "1"]]
    assert section(card, "Strength, without ties") == [["1", "1"], ["3", "1"]]
    assert section(card, "Flags") == [["rude", "2"], ["long", "1"]]
    assert section(card, "Guidelines") == [["(none)", "2"], ["abc", "1"]]


def test_lengths_are_those_of_the_pairs_and_choices_of_the_longer_have_an_interval() -> None:
    rows = [
        pair("p", "a bc", "abc d e"),
        pair("p", user("abcdef") + assistant("gh i"), "ab"),
        pair("p", "ab c", "abcd"),
    ]
    found = facts(render_data_card(rows))
    assert found["characters of the better one, median"] == "4", "4, 10, 4"
    assert found["characters of the worse one, median"] == "4", "7, 2, 4"
    low, high = wilson_interval(1, 2)
    assert found["the longer one is better"] == f"50.0% of 2 pairs (95% interval {low:.1%} to {high:.1%})"


def test_a_ranking_counts_as_all_of_its_pairs() -> None:
    comparison = Comparison(prompt="p", completions=("a", "bb", "ccc"))
    card = render_data_card([Preference(comparison=comparison, judgement=Judgement(ranking=((2,), (1,), (0,))))])
    assert facts(card)["the longer one is better"].startswith("100.0% of 3 pairs")
    assert section(card, "Choices") == [["ranking", "1"]]


def test_names_of_others_are_never_markup_and_stay_on_one_line() -> None:
    hostile = "<script>|x| [a](b) `c`\n## d \x1b[31m"
    card = render_data_card([labelled("a", labeller=hostile, flags=(hostile,))])
    assert not set("<>`[\x1b") & set(card)
    assert all(line.count("|") in (0, 3) for line in card.splitlines())
    assert card.count("\n## d") == 0


def test_no_texts_are_held_so_that_a_card_of_many_long_texts_needs_little_memory() -> None:
    rows = (labelled("a", prompt=f"{n}", completions=("x" * 20_000, f"{n}" * 1_000), time=1.0) for n in range(1_000))
    tracemalloc.start()
    try:
        card = render_data_card(rows)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert facts(card)["comparisons"] == "1000"
    assert peak < 2e6, "the texts are 23 MB"
