"""Exporting preferences: what each format makes of them, what comes back, and files whole or not at all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apart import ROOT
from hypothesis import given
from hypothesis import strategies as st
from preference_rows import (
    assistant,
    bare,
    messages,
    ordered,
    pair,
    preferences,
    prompts,
    read_all,
    read_lines,
    texts,
    user,
)

from trainer.errors import DataError, StorageError, UsageError
from trainer.preferences.formats import FORMATS_OUT, write_preferences
from trainer.preferences.records import Comparison, Judgement, Origin, Preference

TRANSCRIPT = "\n\nHuman: sky?\n\nAssistant:"


def judged(choice: Any, prompt: Any = "p") -> Preference:
    return Preference(comparison=Comparison(prompt=prompt, completions=("x", "y")), judgement=Judgement.chosen(choice))


def ranked(*ranking: tuple[int, ...]) -> Preference:
    """Return a preference with this ranking of x, y, z and w."""
    return Preference(
        comparison=Comparison(prompt="p", completions=("x", "y", "z", "w")), judgement=Judgement(ranking=ranking)
    )


def written(folder: Path, *preferences: Preference, **options: Any) -> tuple[list[dict[str, Any]], dict[str, int]]:
    path = folder / "rows.jsonl"
    result = write_preferences(preferences, path, overwrite=True, **options)
    rows = read_lines(path)
    assert result.rows == len(rows)
    return rows, result.left_out


EVERY = [judged(choice) for choice in ("a", "b", "tie", "both_bad", "skip")]
RANKED = ranked((2,), (0, 3), (1,))
CHAT = pair(user("p"), assistant("x"), assistant("y"))
TRL, KTO, COLUMNS = ("prompt", "chosen", "rejected"), ("prompt", "completion", "label"), ("prompt", "a", "b", "choice")
# What a format makes: its name, the preferences, the columns, the rows' values, and what is left out
MADE: list[tuple[str, list[Preference], tuple[str, ...], list[tuple[Any, ...]], dict[str, int]]] = [
    ("trl", EVERY, TRL, [("p", "x", "y"), ("p", "y", "x")], {"both_bad": 1, "skip": 1, "tie": 1}),
    ("trl", [RANKED], TRL, [("p", *two) for two in ("zx", "zw", "zy", "xy", "wy")], {"tie": 1}),
    ("trl-implicit", [judged("b")], TRL[1:], [("py", "px")], {}),
    ("trl-implicit", [CHAT], TRL[1:], [(user("p") + assistant("x"), user("p") + assistant("y"))], {}),
    (
        "trl-conversational",
        [judged("a"), judged("a", user("sky?")), pair(TRANSCRIPT, " blue", " red")],
        TRL,
        [
            (user("p"), assistant("x"), assistant("y")),
            (user("sky?"), assistant("x"), assistant("y")),
            (user("sky?"), assistant("blue"), assistant("red")),
        ],
        {},
    ),
    (
        "kto",
        [judged("b"), judged("both_bad"), ranked((2,), (0,), (1, 3)), judged("tie"), judged("skip")],
        KTO,
        [("p", text, better) for text, better in zip("yxxyzyw", (True, *[False] * 3, True, False, False), strict=True)],
        {"completion between the best and the worst": 1, "skip": 1, "tie": 1},
    ),
    ("kto-conversational", [judged("a")], KTO, [(user("p"), assistant(text), text == "x") for text in "xy"], {}),
    ("columns", EVERY, COLUMNS, [("p", "x", "y", choice) for choice in ("a", "b", "tie", "both_bad")], {"skip": 1}),
    (
        "columns",  # in the order in which the completions are stored
        [RANKED],
        COLUMNS,
        [("p", *row) for row in ("xzb", "zwa", "yzb", "xya", "ywb")] + [("p", "x", "w", "tie")],
        {},
    ),
]


@pytest.mark.parametrize(("format", "given", "columns", "rows", "left_out"), MADE)
def test_a_format_makes_these_rows_and_reports_what_it_cannot_hold(
    tmp_path: Path,
    format: str,
    given: list[Preference],
    columns: tuple[str, ...],
    rows: list[tuple[Any, ...]],
    left_out: dict[str, int],
) -> None:
    found = written(tmp_path, *given, format=format)
    assert found == ([dict(zip(columns, row, strict=True)) for row in rows], left_out)


@pytest.mark.parametrize(("format", "ties"), [("columns", 2), ("k-way", 1)])
def test_ties_are_kept_where_they_can_be_and_dropped_when_asked(tmp_path: Path, format: str, ties: int) -> None:
    every = [judged("tie"), judged("a"), ranked((0,), (1, 2), (3,))]
    rows, left_out = written(tmp_path, *every, format=format)
    assert left_out == {}
    fewer, left_out = written(tmp_path, *every, format=format, ties="drop")
    assert left_out == {"tie": ties}
    assert len(fewer) == len(rows) - ties


@pytest.mark.parametrize("format", FORMATS_OUT)
def test_datasets_loads_every_format_even_where_rows_have_different_fields(tmp_path: Path, format: str) -> None:
    import datasets

    odd = pair("p", "x", "y")
    known = Preference(
        comparison=Comparison(
            prompt="q",
            completions=("x", "y"),
            origins=(Origin(run="r", sampling={"temperature": 0.7}), Origin(iteration=3)),
            columns={"score": 1},
        ),
        judgement=Judgement.chosen("b", seconds=2.5, flags=("rude",), order_shown=(1, 0), labeller="ann"),
    )
    datasets.disable_progress_bars()
    for suffix in FORMATS_OUT[format].suffixes:
        path = tmp_path / f"rows{suffix}"
        result = write_preferences([odd, known, odd], path, format=format, provenance=True)
        kind = {".jsonl": "json", ".parquet": "parquet", ".csv": "csv"}[suffix]
        data = datasets.load_dataset(kind, data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
        assert len(data) == result.rows


@pytest.mark.parametrize("format", ["trl", "trl-implicit", "kto", "columns"])
def test_text_and_messages_do_not_go_into_one_file(tmp_path: Path, format: str) -> None:
    path = tmp_path / "rows.jsonl"
    with pytest.raises(DataError, match=r"row 1 is text, row [23] is messages: write messages for all, with trl-conv"):
        write_preferences([judged("a"), pair(user("p"), assistant("x"), assistant("y"))], path, format=format)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match="CSV cannot hold messages"):
        write_preferences([judged("a", user("p"))], tmp_path / "rows.csv", format="columns")


def test_half_a_surrogate_pair_is_escaped_in_json_and_refused_in_parquet(tmp_path: Path) -> None:
    rows, _ = written(tmp_path, judged("a", "\ud800"), format="trl")
    assert rows[0]["prompt"] == "\ud800"
    with pytest.raises(DataError, match="Parquet cannot hold a row"):
        write_preferences([judged("a", "\ud800")], tmp_path / "rows.parquet", format="trl")


def test_an_existing_file_or_one_created_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    asked = []

    def slow() -> Iterator[Preference]:
        asked.append("yes")
        path.write_text("somebody else's")
        yield judged("a")

    with pytest.raises(UsageError, match="exists"):
        write_preferences(slow(), path, format="trl")
    assert path.read_text() == "somebody else's"
    with pytest.raises(UsageError, match="exists"):
        write_preferences(slow(), path, format="trl")
    assert asked == ["yes"]  # the second time no preference was read


def test_a_writer_that_fails_half_way_leaves_the_old_file(tmp_path: Path) -> None:
    def failing() -> Iterator[Preference]:
        yield judged("a")
        raise StorageError("the store is damaged")

    for suffix in (".jsonl", ".parquet", ".csv"):
        path = tmp_path / f"rows{suffix}"
        path.write_text("before")
        with pytest.raises(StorageError):
            write_preferences(failing(), path, format="columns", overwrite=True)
        assert path.read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(
    ("name", "format", "message"),
    [
        ("rows.txt", "trl", "format trl is written to .jsonl or .parquet"),
        ("rows.csv", "trl", "format trl is written to .jsonl or .parquet"),
        ("rows.parquet", "k-way", "format k-way is written to .jsonl"),
        ("rows.jsonl", "dpo", "format 'dpo': must be one of trl, trl-implicit"),
        ("folder.jsonl", "trl", "is a folder: give the file a name"),
    ],
)
def test_a_file_name_that_does_not_fit_the_format_is_refused(
    tmp_path: Path, name: str, format: str, message: str
) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(UsageError, match=message):
        write_preferences([judged("a")], tmp_path / name, format=format)


def test_having_nothing_to_write_leaves_no_file_and_says_what_was_left_out(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no preference to write as trl: left out 1 skip, 2 tie"):
        write_preferences([judged("tie"), judged("skip"), judged("tie")], tmp_path / "rows.jsonl", format="trl")
    with pytest.raises(DataError, match="there are none"):
        write_preferences([], tmp_path / "rows.parquet", format="trl")
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_path_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot write .*; choose another place"):
        write_preferences([judged("a")], tmp_path / "file" / "rows.jsonl", format="trl")


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
