"""The data card: its numbers, its tables, and names of others that are never markup."""

from __future__ import annotations

import re
import tracemalloc

import pytest
from preference_rows import assistant, pair, user

from trainer.confidence import wilson_interval
from trainer.preferences.agreement import render_data_card
from trainer.preferences.records import Comparison, Judgement, Origin, Preference


def judged(choice: str, *, prompt: str = "p", completions: tuple[str, str] = ("x", "y"), **more: object) -> Preference:
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
        judged("a", time=86400.0 * 365, note="n"),
        judged("b", completions=("y", "x"), time=86400.0 * 365, note="n"),  # the same, with the sides swapped
        judged("tie", prompt="q"),
        judged("both_bad", prompt="r"),
        judged("skip", prompt="s"),
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
    rows = [judged(choice, prompt=str(number), order_shown=order) for number, (choice, order) in enumerate(shown)]
    assert facts(render_data_card(rows))["the better one was shown first"] == "3 (75.0%)"


def test_counts_are_listed_by_source_labeller_choice_strength_flag_and_guidelines() -> None:
    origins = (Origin(source="b.jsonl"), Origin(source="a.jsonl"))
    comparison = Comparison(prompt="p", completions=("x", "y"), origins=origins)
    rows = [
        Preference(comparison=comparison, judgement=Judgement.chosen("a", labeller="bob", strength=3)),
        judged("b", labeller="ann", flags=("rude", "long"), guidelines="abc"),
        judged("tie", labeller="ann", flags=("rude",)),
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


def test_agreement_is_reported_where_several_labels_exist() -> None:
    rows = [judged("a", prompt=str(number), labeller="ann") for number in range(4)]
    assert facts(render_data_card(rows))["agreement between labellers"] == "-"
    said = zip("aabb", "abab", strict=True)
    rows = [
        judged(choice, prompt=str(number), labeller=name)
        for number, choices in enumerate(said)
        for name, choice in zip(("ann", "bob"), choices, strict=True)
    ]
    found = facts(render_data_card([*rows, judged("a", prompt="0", labeller="ann")]))
    assert found["agreement between labellers"] == "Krippendorff's alpha 0.125 in 4 common units"
    assert found["agreement with oneself"] == "ann 100.0%"


def test_names_of_others_are_never_markup_and_stay_on_one_line() -> None:
    hostile = "<script>|x| [a](b) `c`\n## d \x1b[31m"
    card = render_data_card([judged("a", labeller=hostile, flags=(hostile,))])
    assert not set("<>`[\x1b") & set(card)
    assert all(line.count("|") in (0, 3) for line in card.splitlines())
    assert card.count("\n## d") == 0


@pytest.mark.parametrize("count", [0, 1])
def test_few_or_no_preferences_have_a_card_too(count: int) -> None:
    card = render_data_card([judged("skip")] * count)
    assert facts(card)["judgements"] == str(count)
    assert "Licence: *to be filled in*" in card
    assert facts(card)["the longer one is better"] == facts(card)["characters of the better one, median"] == "-"


def test_no_texts_are_held_so_that_a_card_of_many_long_texts_needs_little_memory() -> None:
    rows = (judged("a", prompt=f"{n}", completions=("x" * 20_000, f"{n}" * 1_000), time=1.0) for n in range(1_000))
    tracemalloc.start()
    try:
        card = render_data_card(rows)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert facts(card)["comparisons"] == "1000"
    assert peak < 2e6, "the texts are 23 MB"
