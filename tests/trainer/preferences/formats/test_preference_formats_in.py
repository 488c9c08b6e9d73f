"""Importing preferences in the formats of others: rows, detection of formats, and errors of broken rows."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from datetime import date
from os.path import commonprefix
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from preference_rows import assistant, bare, pair, read_all, user, write_lines

from trainer.errors import DataError, UsageError
from trainer.preferences.formats import FORMATS_IN, ColumnNames, read_preferences
from trainer.preferences.formats.columns import split_texts
from trainer.preferences.records import Choice, Comparison, Judgement, Origin, Preference, Text, as_messages

SKY = {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."}
HELLO = "\n\nHuman: hello\n\nAssistant: hi\n\nHuman: how are you?\n\nAssistant:"


def hh(chosen: str, rejected: str) -> dict[str, str]:
    return {"chosen": chosen, "rejected": rejected}


def one(tmp_path: Path, row: dict[str, Any], **options: Any) -> Any:
    [preference] = read_all(write_lines(tmp_path / "rows.jsonl", row), **options)
    return preference


def error(source: str | Path, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        read_all(source, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def chosen(choice: Choice, prompt: Text, first: Text, second: Text, **columns: Any) -> Preference:
    comparison = Comparison(prompt=prompt, completions=(first, second), columns=columns)
    return Preference(comparison=comparison, judgement=Judgement.chosen(choice))


def feedback(*scored: tuple[str, Any]) -> dict[str, Any]:
    completions = [
        {"model": f"m{number}", "response": text, "overall_score": score, "critique": "..."}
        for number, (text, score) in enumerate(scored)
    ]
    return {"instruction": "sky?", "models": [], "completions": completions, "source": "evol"}


CHAT = pair(user("sky?"), assistant("blue"), assistant("green"))
SYSTEM = [{"role": "system", "content": "be kind"}, *user("sky?")]
LONGER = user("sky?") + assistant("blue")
TURNS = {"conversation_a": user("sky?") + assistant("blue"), "conversation_b": user("sky?") + assistant("green")}
MODELS = {"model_a": "m1", "model_b": "m2"}
ANSWERS = {"prompt": "sky?", "response_a": "blue", "response_b": "green"}
DIALOGUE = {"prompt": '["sky?"]', "response_a": '["blue"]', "response_b": '["green"]'}
MULTI = {"prompt": ["sky?", "why?"], "response_a": ["blue", "so"], "response_b": ["blue", "thus"]}
PARTS = [{"type": "text", "text": "bl", "image": None}, {"type": "text", "text": "ue", "image": None}]


def won(name: str, written: Any = int) -> dict[str, Any]:
    return {one: written(one == name) for one in ("winner_model_a", "winner_model_b", "winner_tie")}


# What a row means: by name, the row, and the preference without its origins
MEANT: dict[str, tuple[dict[str, Any], Preference]] = {
    "trl": (
        {**SKY, "score_chosen": 4.5, "tags": ["a", None]},
        chosen("a", "The sky is", " blue.", " green.", score_chosen=4.5, tags=["a", None]),
    ),
    "messages keep role and content": (
        {
            "prompt": [{"role": "user", "content": "sky?", "name": None}],
            "chosen": assistant("blue"),
            "rejected": assistant("green"),
        },
        CHAT,
    ),
    **{
        f"the prompt repeated, {len(beginning)}": (
            {"prompt": "sky?", "chosen": beginning + assistant("blue"), "rejected": beginning + assistant("green")},
            pair(beginning, assistant("blue"), assistant("green")),
        )
        for beginning in (user("sky?"), SYSTEM)
    },
    "a text prompt": ({"prompt": "sky?", "chosen": assistant("blue"), "rejected": assistant("green")}, CHAT),
    "text completions": ({"prompt": user("sky?"), "chosen": "blue", "rejected": "green"}, CHAT),
    # An implicit prompt ends where a word that both share ends, and no completion is empty.
    **{
        f"{first!r} or {second!r}": (
            hh(first, second),
            pair(prompt, first.removeprefix(prompt), second.removeprefix(prompt)),
        )
        for first, second, prompt in (
            ("The sky is blue.", "The sky is green.", "The sky is"),
            ("The sky is blue.", "The sky is blunt.", "The sky is"),  # not within a word
            ("The sky  is", "The sky", "The"),
            ("The sky", "The skyline", "The"),
            ("one two\nthree", "one two\nfour", "one two"),
            ("The lake is calm", "The lake is calm and deep", "The lake is"),
            ("one two  ", "one two three", "one"),
        )
    },
    "the messages that both begin with": (
        {"chosen": LONGER + user("mine") + assistant("x"), "rejected": LONGER + user("mine") + assistant("y")},
        pair(LONGER + user("mine"), assistant("x"), assistant("y")),
    ),
    "each keeps a message of its own": (
        {"chosen": LONGER, "rejected": LONGER + user("sure?")},
        pair(user("sky?"), assistant("blue"), assistant("blue") + user("sure?")),
    ),
    "and one that the assistant wrote": (
        {"chosen": LONGER + user("why?"), "rejected": LONGER + user("sure?")},
        pair(user("sky?"), LONGER[1:] + user("why?"), LONGER[1:] + user("sure?")),
    ),
    "a transcript, cut after the last common turn of the assistant": (
        hh(HELLO + " well", HELLO + " who wants to know?"),
        pair(HELLO, " well", " who wants to know?"),
    ),
    "transcripts that part early": (
        hh("\n\nHuman: hello\n\nAssistant: hi\n\nHuman: bye\n\nAssistant: x", "\n\nHuman: hello\n\nAssistant: hey"),
        pair("\n\nHuman: hello\n\nAssistant:", " hi\n\nHuman: bye\n\nAssistant: x", " hey"),
    ),
    **{
        f"a transcript cut off at {end!r}": (hh(HELLO + end, HELLO + " fine"), pair(HELLO, end, " fine"))
        for end in ("\n\nHuman", "\n\nHuman: and")
    },
    **{
        f"a choice of {given!r}": ({"prompt": "p", "a": "x", "b": "y", "choice": given}, chosen(choice, "p", "x", "y"))
        for given, choice in (
            ("a", "a"), ("B", "b"), (1, "a"), ("2", "b"), (2.0, "b"), ("Tie", "tie"), ("both_bad", "both_bad"),
            ("skip", "skip"),
        )
    },
    **{
        f"Arena's {winner}": (
            {**TURNS, **MODELS, "winner": winner, "turn": 1},
            chosen(choice, user("sky?"), assistant("blue"), assistant("green"), **MODELS, turn=1),
        )
        for winner, choice in (
            ("model_a", "a"), ("model_b", "b"), ("tie", "tie"), ("tie (bothbad)", "both_bad"), ("both_bad", "both_bad"),
        )
    },
    **{
        f"{layout} in which {winner} is 1": ({**row, **won(winner, number)}, chosen(choice, *texts))
        for winner, choice in (("winner_model_a", "a"), ("winner_model_b", "b"), ("winner_tie", "tie"))
        for layout, row, number, texts in (
            ("a dialogue", MULTI, int, (LONGER + user("why?"), assistant("so"), assistant("thus"))),
            (
                "a dialogue of CSV",
                {name: json.dumps(turns) for name, turns in MULTI.items()},
                lambda found: f"{int(found)}.0",
                (LONGER + user("why?"), assistant("so"), assistant("thus")),
            ),
            ("single answers", ANSWERS, int, ("sky?", "blue", "green")),
        )
    },
    "content in parts": (
        {**TURNS, "conversation_a": [*user("sky?"), {"role": "assistant", "content": PARTS}], "winner": "model_a"},
        CHAT,
    ),
    "k-way": (
        {"prompt": "p", "completions": ["x", "y", "z"], "ranking": [[2], [0, 1]], "topic": "t"},
        Preference(
            comparison=Comparison(prompt="p", completions=("x", "y", "z"), columns={"topic": "t"}),
            judgement=Judgement(ranking=((2,), (0, 1))),
        ),
    ),
    "ultrafeedback, by score with equal scores tied": (
        feedback(("red", 2.5), ("blue", 9), ("grey", 7.0), ("azure", 9.0)),
        Preference(
            comparison=Comparison(
                prompt="sky?",
                completions=("red", "blue", "grey", "azure"),
                columns={"source": "evol", "scores": [2.5, 9.0, 7.0, 9.0]},
            ),
            judgement=Judgement(ranking=((1, 3), (2,), (0,))),
        ),
    ),
    "equal and tied": ({"prompt": "p", "a": "x", "b": "x", "choice": "tie"}, chosen("tie", "p", "x", "x")),
    **{
        f"k-way keeps what was recorded, {text!r}": (
            {"prompt": "p", "completions": [text, text], "ranking": [[1], [0]]},
            chosen("b", "p", text, text),
        )
        for text in ("x", "")
    },
}  # fmt: skip
WRITERS = {"Arena's": ["m1", "m2"], "ultrafeedback": ["m0", "m1", "m2", "m3"]}


@pytest.mark.parametrize("name", MEANT)
def test_a_row_is_read_as_it_is_meant_with_its_other_columns_and_writers(tmp_path: Path, name: str) -> None:
    row, meant = MEANT[name]
    found = one(tmp_path, row)
    assert replace(found, comparison=replace(found.comparison, origins=())) == meant
    writers = WRITERS.get(name.split()[0].rstrip(","), [""] * len(found.comparison.completions))
    if not name.startswith("k-way"):
        source = str(tmp_path / "rows.jsonl")
        assert found.comparison.origins == tuple(Origin(source=source, writer=writer) for writer in writers)


@given(st.text(alphabet="ab \n", max_size=12), st.text(alphabet="ab \n", max_size=12))
def test_a_split_loses_no_character_and_leaves_no_word_in_two(first: str, second: str) -> None:
    parts = split_texts(first, second)
    if parts is None:
        begins = first.split()[:1] == second.split()[:1] != []
        shared = begins and commonprefix((first, second)).strip()  # noqa: RUF071  texts
        assert not (shared and min(len(first.split()), len(second.split())) > 1)
        return
    prompt, *rest = parts
    assert (prompt + rest[0], prompt + rest[1]) == (first, second)
    assert all(one[0].isspace() and one.strip() for one in rest)
    assert prompt == prompt.rstrip() != ""


def test_the_turns_of_a_transcript_become_messages_when_asked(tmp_path: Path) -> None:
    found = one(tmp_path, hh(HELLO + " well\n\nHuman: ok", HELLO + " who?"), conversational=True)
    prompt = user("hello") + assistant("hi") + user("how are you?")
    assert bare(found) == pair(prompt, assistant("well") + user("ok"), assistant("who?"))
    cut_off = one(tmp_path, hh(HELLO + "\n\nHuman: and", HELLO + " fine"), conversational=True)
    assert cut_off.comparison.completions[0][0]["role"] == "assistant"
    joined, _ = as_messages("\n\nHuman: one\n\nHuman: two\n\nHuman:\n\nAssistant:", ())
    assert joined == user("one\n\ntwo"), "neighbouring turns of one speaker"


def test_columns_are_read_by_the_names_they_are_given(tmp_path: Path) -> None:
    path = tmp_path / "poll.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([["question", "left", "right", "winner", "who", "how", "day"]])
        writer.writerows([["sky?", "blue,\n", 'gr"een', "2", "ann", "3", "mon"], ["sea?", "x", "y", "tie", "", "", ""]])
    names = ColumnNames(
        prompt="question", a="left", b="right", choice="winner", labeller="who", strength="how", note="none"
    )
    first, second = read_all(path, columns=names)
    assert first.judgement == Judgement.chosen("b", labeller="ann", strength=3)
    assert first.comparison.completions == ("blue,\n", 'gr"een')
    assert first.comparison.columns == {"day": "mon"}
    assert second.judgement == Judgement.chosen("tie")
    other = ColumnNames(prompt="q", chosen="better", rejected="worse")
    assert bare(one(tmp_path, {"q": "p", "better": "x", "worse": "y"}, columns=other)) == pair("p", "x", "y")


@pytest.mark.parametrize(
    ("given", "first", "choices"),
    [
        ([1, 0], "1", ["a", "b"]),
        (["0", "1", "tie"], "0", ["a", "b", "tie"]),
        ([True, False], "1", ["a", "b"]),
        (["True", "false"], "0", ["b", "a"]),
        ([1.0, 0.0], "1", ["a", "b"]),
    ],
)
def test_choices_of_0_and_1_are_read_once_it_is_said_which_is_the_first(
    tmp_path: Path, given: list[Any], first: str, choices: list[str]
) -> None:
    rows = [{"prompt": "p", "a": "x", "b": "y", "choice": choice} for choice in given]
    path = write_lines(tmp_path / "rows.jsonl", *rows)
    assert [row.judgement.choice for row in read_all(path, columns=ColumnNames(first=first))] == choices


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1, 0], "rows.jsonl:2: column 'choice' is 0: which one means that a is better?"),
        ([1, False], "column 'choice' is False: which one means that a is better? Name it among the columns, as in "),
        (["1", "0.0"], "column 'choice' is '0.0': which one"),
        ([1, 2, 3], "column 'choice' is 3: numbers must be 1 for a and 2 for b; write the choices as words"),
        ([2, -1], "column 'choice' is -1: numbers must be 1 for a and 2 for b"),
        ([1, 0.5], "column 'choice' is 0.5: numbers must be"),
    ],
)
def test_numbers_of_unknown_meaning_are_never_guessed_even_if_broken_rows_are_skipped(
    tmp_path: Path, given: list[Any], message: str
) -> None:
    rows = [{"prompt": "p", "a": "x", "b": "y", "choice": choice} for choice in given]
    path = write_lines(tmp_path / "rows.jsonl", *rows)
    with pytest.raises(UsageError) as caught:
        read_all(path, skip_broken=True)
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["prompt", "question=prompt", "first=2", "a=", "=b"])
def test_a_role_that_is_not_one_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"column {text}: must be"):
        ColumnNames.of([text])


# Sources and detection

ROWS: dict[str, dict[str, Any]] = {
    "trl": SKY,
    "trl-implicit": hh("The sky is blue.", "The sky is green."),
    "hh": hh(HELLO + " a", HELLO + " b"),
    "ultrafeedback": feedback(("x", 1), ("y", 2)),
    "columns": {"prompt": "p", "a": "x", "b": "y", "choice": "a"},
    "arena": {**TURNS, "winner": "tie"},
    "k-way": {"prompt": "p", "completions": ["x", "y"], "ranking": [[0], [1]]},
}


@pytest.mark.parametrize("name", FORMATS_IN)
def test_the_columns_of_the_first_row_determine_the_format(tmp_path: Path, name: str) -> None:
    path = write_lines(tmp_path / "rows.jsonl", ROWS[name])
    reading = read_preferences(path)
    assert reading.format == name
    assert list(reading) == read_all(path, format=name)


def test_messages_and_dates_of_parquet_are_read(tmp_path: Path) -> None:
    row = {"prompt": user("sky?"), "chosen": assistant("blue"), "rejected": assistant("green"), "day": date(2024, 2, 1)}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "rows.parquet")
    [found] = read_all(tmp_path / "rows.parquet")
    assert bare(found) == pair(user("sky?"), assistant("blue"), assistant("green"))
    assert found.comparison.columns == {"day": "2024-02-01"}


def test_a_saved_dataset_is_read_by_split(tmp_path: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    both = {name: datasets.Dataset.from_list([{**SKY, "split": name}]) for name in ("train", "test")}
    datasets.DatasetDict(both).save_to_disk(tmp_path / "sky")
    [found] = read_all(tmp_path / "sky", split="test")
    assert found.comparison.columns == {"split": "test"}
    assert "has the splits train, test" in error(tmp_path / "sky", split="dev")
    assert "a folder must be one that Dataset.save_to_disk wrote" in error(tmp_path)


# Broken rows

BROKEN: dict[str, tuple[Any, str]] = {
    "equal": ({**SKY, "rejected": " blue."}, "the chosen and the rejected completion are the same"),
    "not json": ('{"prompt": ', "not JSON"),
    "blank prompt": ({**SKY, "prompt": " "}, "column 'prompt' is empty"),
    "number": ({**SKY, "chosen": 3}, "column 'chosen' is 3: must be a string, or a list of messages"),
    "surrogate": ('{"prompt": "a\\ud800", "chosen": "x", "rejected": "y"}', "half a surrogate pair (\\ud800)"),
    "column gone": ({"prompt": "p", "chosen": "x", "answer": "y"}, "no column 'rejected': the columns are prompt, ch"),
    "nothing shared": (hh("blue", "green"), "no common beginning"),
    "no turn shared": (
        hh("\n\nHuman: a\n\nAssistant: x", "\n\nHuman: b\n\nAssistant: y"),
        "share no '\\n\\nAssistant:'",
    ),
    "choice": ({"prompt": "p", "a": "x", "b": "y", "choice": "c"}, "column 'choice' is 'c': must be a or 1, b or 2, "),
    "empty": ({**SKY, "rejected": " "}, "a completion is empty: remove the row"),
    "silent transcript": (hh(HELLO, HELLO + " fine"), "a completion is empty: remove the row"),
    "same word": (hh("blue", "blue"), "the chosen and the rejected completion are the same"),
    "score": (feedback(("x", 1), ("y", None)), "overall_score of completion 2 is None: must be a number"),
    "alone": (feedback(("x", 1)), "must be a list of two or more"),
    "ranking": ({"prompt": "p", "completions": ["x", "y"], "ranking": [[0]]}, "must be groups of the places 0 to 1"),
    "strength": (ROWS["k-way"] | {"strength": 4}, "strength is 4: must be less than or equal to 3"),
    "longer than a float": (ROWS["k-way"] | {"seconds": 10**400}, ": must be a number"),
    "digits of JSON": (json.dumps(SKY)[:-1] + f', "n": {"1" * 5000}}}', "a number of thousands of digits"),
    "order": (ROWS["k-way"] | {"order_shown": [0, 0]}, "order_shown is [0, 0]: must be places 0 to 1, none twice"),
    "origins": (ROWS["k-way"] | {"origins": [{}]}, "origins must be a list of 2"),
    "origin": (ROWS["k-way"] | {"origins": [{"iteration": "x"}, {}]}, "iteration is 'x': must be a whole number"),
    "verdict": (ROWS["k-way"] | {"verdict": "good"}, "verdict is 'good': must be 'ranked', 'both_bad' or 'skip'"),
    "newer": (ROWS["k-way"] | {"version": 2}, "version is 2, this program reads 1"),
    "winner": ({**TURNS, "winner": "gpt"}, "column 'winner' is 'gpt': must be"),
    "two winners": ({**ANSWERS, "winner_model_a": 1, "winner_model_b": 1}, "exactly one must be 1"),
    "other question": ({**TURNS, "conversation_a": user("sea?"), "winner": "tie"}, "no common beginning"),
    "turns": ({**DIALOGUE, "response_a": '["blue", "x"]', "winner": "tie"}, "must have the same number of turns"),
    "null turn": ({**DIALOGUE, "response_a": "[null]", "winner": "tie"}, "must be a string, or a list of messages"),
    "deep": ("[" * 100_000, "nested too deeply"),
    "deep column": (json.dumps(SKY)[:-1] + ', "x": ' + "[" * 700 + "]" * 700 + "}", "nested too deeply"),
}
FORMAT_OF = {  # of the rows around a broken one; trl for the others
    "nothing shared": "trl-implicit",
    "no turn shared": "hh",
    "choice": "columns",
    "silent transcript": "hh",
    "same word": "trl-implicit",
    "score": "ultrafeedback",
    "alone": "ultrafeedback",
    **dict.fromkeys(("winner", "two winners", "other question", "turns", "null turn"), "arena"),
    **{name: "k-way" for name, (row, _) in BROKEN.items() if isinstance(row, dict) and "ranking" in row},
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_row_is_refused_by_line_and_rule_and_skipped_when_asked(tmp_path: Path, name: str) -> None:
    row, message = BROKEN[name]
    format = FORMAT_OF.get(name, "trl")
    path = write_lines(tmp_path / "rows.jsonl", ROWS[format], row, ROWS[format])
    refusal = error(path)
    assert "rows.jsonl:2: " in refusal
    assert message in refusal
    assert refusal.endswith("(--skip-broken, or data.skip_broken = true, leaves such rows out)")

    reading = read_preferences(path, skip_broken=True)
    assert len(list(reading)) == 2
    assert (reading.rows, reading.broken) == (3, 1)
    [problem] = reading.problems
    assert "rows.jsonl:2: " in problem
    assert message in problem


def test_twenty_broken_rows_are_listed_and_the_rest_counted(tmp_path: Path) -> None:
    reading = read_preferences(write_lines(tmp_path / "rows.jsonl", SKY, *["no JSON"] * 30), skip_broken=True)
    assert len(list(reading)) == 1
    assert (reading.rows, reading.broken, len(reading.problems)) == (31, 30, 20)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.jsonl", b"", "has no rows"),
        ("broken.jsonl", b"{", "broken.jsonl:1: not JSON"),
        (
            "odd.jsonl",
            b'{"question": "p"}',
            "the columns are question; preferences have prompt, chosen and",
        ),
        ("odd.csv", b"question,answer\np,x\n", "name them, as in `preferences import --column prompt=question`"),
        ("pairs.csv", b"prompt,a,b\np,x,y\n", "the pairs have no choice (columns prompt, a, b): label them with"),
        ("kto.jsonl", b'{"prompt": "p", "completion": "x", "label": true}', "unpaired rows"),
        ("rows.xlsx", b"", "unknown suffix '.xlsx'"),
        ("latin.jsonl", b'{"prompt": "\xfc"}', "latin.jsonl:1: byte 0xfc is not UTF-8"),
    ],
)
def test_a_source_without_preferences_is_refused_in_one_line(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert message in error(tmp_path / name)


@pytest.mark.parametrize("name", ["gone.jsonl", "gone.jsonl.gz", "a/b/gone.csv", "a//b", "~nobody-here/x"])
def test_a_missing_file_is_named_without_asking_the_hub(name: str) -> None:
    assert f"'{name}'" in error(name)


def test_an_unknown_format_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="format 'dpo': must be one of auto, trl, trl-implicit, hh"):
        read_preferences(write_lines(tmp_path / "rows.jsonl", SKY), format="dpo")
