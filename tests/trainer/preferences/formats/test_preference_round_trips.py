"""Round trips: what a format holds comes back, by the table of docs/labelling.md, format by format."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from apart import ROOT
from hypothesis import given
from hypothesis import strategies as st
from preference_rows import bare, messages, ordered, preferences, prompts, read_all, texts, user, words

from trainer.preferences.formats import FORMATS_OUT, write_preferences
from trainer.preferences.records import Choice, Comparison, Judgement, Preference, as_messages

DOCS = ROOT / "docs" / "labelling.md"
SUFFIXES = [(name, suffix) for name, format in FORMATS_OUT.items() for suffix in format.suffixes]
KINDS = {"ranked": "better", "tie": "tie", "both_bad": "both bad", "skip": "skip"}


def documented() -> dict[str, tuple[tuple[str, ...], list[str]]]:
    """Return what docs/labelling.md says of each format: its suffixes and the judgements that it holds."""
    rows = re.findall(
        r"^\| `([\w-]+)` \| (.+) \| (.+) \| .+ \|$", DOCS.read_text().partition("### Export")[2], re.MULTILINE
    )
    return {name: (tuple(suffixes.split()), judgements.split(", ")) for name, suffixes, judgements in rows}


def held(format: str) -> tuple[str, ...]:
    """Return the kinds of judgement that a format holds, as `judgements` names them."""
    _, reported = documented()[format]
    return tuple(kind for kind, name in KINDS.items() if name in reported)


def round_trip(rows: list[Preference], folder: Path, format: str, suffix: str, *, provenance: bool) -> list[Preference]:
    path = folder / f"rows{suffix}"
    written = write_preferences(rows, path, format=format, provenance=provenance, overwrite=True)
    assert (written.rows, written.left_out) == (len(rows), {})
    return read_all(path)


def conversation(preference: Preference) -> Preference:
    prompt, completions = as_messages(preference.comparison.prompt, preference.comparison.completions)
    comparison = preference.comparison
    return Preference(
        comparison=Comparison(
            prompt=prompt, completions=completions, origins=comparison.origins, columns=comparison.columns
        ),
        judgement=preference.judgement,
    )


def whole(preference: Preference) -> tuple[Any, ...]:
    """Return the texts in implicit-prompt form: with the prompt in front."""
    prompt, completions = preference.comparison.prompt, preference.comparison.completions
    return tuple(prompt + completion for completion in completions)  # type: ignore[operator]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("round-trips")


@pytest.mark.parametrize(("format", "suffix"), [pair for pair in SUFFIXES if pair[0] in ("trl", "columns")])
@given(data=st.data())
def test_texts_and_choices_come_back_and_all_else_with_the_provenance(
    data: st.DataObject, folder: Path, format: str, suffix: str
) -> None:
    kind = {} if suffix == ".csv" or data.draw(st.booleans()) else {"texts": messages, "prompts": prompts.map(user)}
    rows = data.draw(st.lists(preferences(kinds=held(format), **kind), min_size=1, max_size=3))
    found = round_trip(rows, folder, format, suffix, provenance=False)
    assert [bare(ordered(row)) for row in found] == [bare(ordered(row)) for row in rows]
    found = round_trip(rows, folder, format, suffix, provenance=True)
    assert [ordered(row) for row in found] == [ordered(row) for row in rows]


@pytest.mark.parametrize("suffix", FORMATS_OUT["trl-conversational"].suffixes)
@given(data=st.data())
def test_the_conversational_format_holds_plain_text_as_messages(data: st.DataObject, folder: Path, suffix: str) -> None:
    rows = data.draw(st.lists(preferences(texts=texts | messages), min_size=1, max_size=3))
    found = round_trip(rows, folder, "trl-conversational", suffix, provenance=True)
    assert [ordered(row) for row in found] == [ordered(conversation(row)) for row in rows]


@pytest.mark.parametrize("suffix", FORMATS_OUT["trl-implicit"].suffixes)
@given(data=st.data())
def test_an_implicit_prompt_comes_back_in_one_piece_with_what_follows_it(
    data: st.DataObject, folder: Path, suffix: str
) -> None:
    kind = {} if data.draw(st.booleans()) else {"texts": messages, "prompts": prompts.map(user)}
    beginnings = words.map(lambda text: f"p {text}") if not kind else prompts.map(user)
    rows = data.draw(st.lists(preferences(**kind | {"prompts": beginnings}), min_size=1, max_size=3))
    found = round_trip(rows, folder, "trl-implicit", suffix, provenance=True)
    for row, again in zip(rows, found, strict=True):
        chosen, rejected = row.judgement.ranking
        assert whole(again) == tuple(whole(row)[place] for place in (*chosen, *rejected))
        assert again.judgement.choice == "a"
        assert again.comparison.columns == row.comparison.columns
        assert ordered(again).judgement.labeller == row.judgement.labeller


@given(data=st.data())
def test_k_way_loses_nothing_whatever_the_judgement(data: st.DataObject, folder: Path) -> None:
    either = texts | messages | st.just("")
    drawn = preferences(kinds=held("k-way"), largest=4, texts=either, prompts=either)
    rows = data.draw(st.lists(drawn, min_size=1, max_size=3))
    assert round_trip(rows, folder, "k-way", ".jsonl", provenance=False) == rows


def test_the_documented_formats_are_exactly_the_existing_ones() -> None:
    assert {name: suffixes for name, (suffixes, _) in documented().items()} == {
        name: format.suffixes for name, format in FORMATS_OUT.items()
    }


@pytest.mark.parametrize("format", FORMATS_OUT)
def test_a_format_holds_the_judgements_that_are_documented_and_no_others(folder: Path, format: str) -> None:
    better, *others = (
        Preference(comparison=Comparison(prompt="p", completions=("x", "y")), judgement=Judgement.chosen(choice))
        for choice in ("a", "tie", "both_bad", "skip")
    )
    for name, preference in zip(("tie", "both bad", "skip"), others, strict=True):
        path = folder / "rows.jsonl"
        written = write_preferences([better, preference], path, format=format, overwrite=True)
        assert (written.left_out == {}) == (name in documented()[format][1]), name


@pytest.mark.parametrize("choice", ["a", "b"])
def test_what_belongs_to_a_completion_stays_with_it(choice: Choice, folder: Path) -> None:
    columns = {"scores": [1.0, 2.0], "lengths": [3, 4], "reward_models": {"rm": [5.0, 6.0]}, "years": [7, 8]}
    comparison = Comparison(prompt="p", completions=("x", "y"), columns=columns)
    preference = Preference(comparison=comparison, judgement=Judgement.chosen(choice))
    [back] = round_trip([preference], folder, "trl", ".jsonl", provenance=True)
    for found in (back, preference.at(1, 0), back.at(1, 0)):
        of = found.comparison.completions.index("x")
        assert [found.comparison.columns[name][of] for name in ("scores", "lengths")] == [1.0, 3]
        assert found.comparison.columns["reward_models"]["rm"][of] == 5.0
        assert found.comparison.columns["years"] == [7, 8]
