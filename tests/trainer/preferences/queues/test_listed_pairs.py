"""Queues of existing material: datasets with and without judgements, and comparisons to judge again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from label_runs import Drawing, plan

from trainer.preferences.records import Comparison, Judgement, Origin, Preference, QueuePlan
from trainer.preferences.store import PreferenceStore


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "preferences.db"


def dataset(path: Path, *rows: Any) -> QueuePlan:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return QueuePlan(queue="dataset", source=str(path))


def comparisons(queue: QueuePlan, store: Path) -> list[Comparison]:
    return [item.comparison for item in Drawing(plan(queue), store)]


def test_preferences_of_any_format_are_asked_without_their_judgements(tmp_path: Path, store: Path) -> None:
    trl = dataset(tmp_path / "a.jsonl", {"prompt": "p", "chosen": "good", "rejected": "bad", "score_chosen": 3})
    (pair,) = comparisons(trl, store)
    assert (pair.prompt, pair.completions, pair.columns) == ("p", ("good", "bad"), {"score_chosen": 3})
    ranked = dataset(tmp_path / "b.jsonl", {"prompt": "p", "completions": ["x", "y", "z"], "ranking": [[2], [0], [1]]})
    assert [one.completions for one in comparisons(ranked, store)] == [("x", "y", "z")]
    feedback = {"instruction": "p", "completions": [{"response": text, "overall_score": 1} for text in ("u", "v")]}
    assert [one.completions for one in comparisons(dataset(tmp_path / "c.jsonl", feedback), store)] == [("u", "v")]


def test_rows_without_judgement_are_asked(tmp_path: Path, store: Path) -> None:
    messages = [{"role": "user", "content": "hello"}]
    answers = [[{"role": "assistant", "content": text}] for text in ("hi", "bye", "hi")]
    queue = dataset(
        tmp_path / "rows.jsonl",
        {"prompt": "p", "completions": ["x", "y"], "topic": "sky"},
        {"prompt": messages, "completions": answers},
    )
    first, second = comparisons(queue, store)
    assert (first.prompt, first.completions, first.columns) == ("p", ("x", "y"), {"topic": "sky"})
    assert first.origins == (Origin(source=queue.source),) * 2
    assert (second.prompt, list(second.completions)) == (messages, answers)
    (tmp_path / "pairs.csv").write_text("prompt,a,b\nhow,so,thus\n")
    (pair,) = comparisons(QueuePlan(queue="dataset", source=str(tmp_path / "pairs.csv")), store)
    assert (pair.prompt, pair.completions) == ("how", ("so", "thus"))
    turns = {f"conversation_{side}": [*messages, answer[0]] for side, answer in zip("ab", answers, strict=False)}
    (pair,) = comparisons(dataset(tmp_path / "arena.jsonl", {**turns, "model_a": "m1", "model_b": "m2"}), store)
    assert (pair.prompt, list(pair.completions)) == (messages, answers[:2])
    assert [origin.writer for origin in pair.origins] == ["m1", "m2"]


def test_pairs_are_asked_by_the_names_of_their_columns_whatever_their_choice(tmp_path: Path, store: Path) -> None:
    rows = [{"history": f"p{choice}", "left": "x", "right": "y", "labels": choice} for choice in (0, 1, -3, None)]
    queue = dataset(tmp_path / "rows.jsonl", *rows)
    columns = ("prompt=history", "a=left", "b=right", "choice=labels")
    found = comparisons(replace(queue, columns=columns), store)
    assert [(one.prompt, one.completions, one.columns) for one in found] == [
        (row["history"], ("x", "y"), {}) for row in rows
    ]


@pytest.mark.parametrize(
    "good",
    [
        {"prompt": "p", "completions": ["x", "y"]},
        {"prompt": "p", "chosen": "x", "rejected": "y"},
        {"prompt": "p", "a": "x", "b": "y"},
    ],
)
def test_broken_rows_are_skipped_and_counted(tmp_path: Path, store: Path, good: dict[str, Any]) -> None:
    half = dict.fromkeys(good, "\ud83d")
    odd = [dict.fromkeys(good, 3), half, {"prompt": " ", **{name: good[name] for name in list(good)[1:]}}, {"q": 1}]
    queue = dataset(tmp_path / "rows.jsonl", "{not json", good, *odd, '{"prompt": ' + "[" * 50_000)
    drawing = Drawing(plan(queue), store)
    assert [item.comparison.prompt for item in drawing] == ["p"]
    (reported,) = drawing.mixture.problems
    assert reported.startswith(f"6 broken rows of '{queue.source}' skipped, the first: {queue.source}:1: not JSON")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("none.jsonl", None, "no such file"),
        ("empty.jsonl", b"", "has no rows"),
        ("bytes.jsonl", b"\xff\xfe{}", "as UTF-8"),
        ("broken.parquet", b"PAR1", "not a Parquet file"),
        ("other.jsonl", b'{"question": "q"}\n', "the columns are question"),
        ("folder", "folder", "Dataset.save_to_disk"),
    ],
)
def test_an_unreadable_source_is_reported(
    tmp_path: Path, store: Path, name: str, content: bytes | str | None, words: str
) -> None:
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        path.mkdir()
    drawing = Drawing(plan(QueuePlan(queue="dataset", source=str(path))), store)
    assert list(drawing) == []
    (reported,) = drawing.mixture.problems
    assert words in reported


def kept(store: Path, prompt: str, *, labeller: str = "ann", shown: tuple[int, ...] = (1, 0)) -> Comparison:
    comparison = Comparison(prompt=prompt, completions=("x", "y"))
    judgement = Judgement.chosen("a", labeller=labeller, order_shown=shown)
    with PreferenceStore(store) as opened:
        opened.add(Preference(comparison=comparison, judgement=judgement))
    return comparison


def test_comparisons_are_asked_again_by_their_keys_with_the_sides_swapped(tmp_path: Path, store: Path) -> None:
    mine, left, shown = kept(store, "mine"), kept(store, "left"), kept(store, "no side", shown=())
    others = kept(store, "others", labeller="bob")
    queue = QueuePlan(queue="again", keys=(others.key, mine.key, mine.key, shown.key))
    items = list(Drawing(plan(queue), store))
    assert [item.comparison.prompt for item in items] == ["others", "mine", "no side"]
    assert items[1].order == (0, 1)
    assert {item.repeats for item in items} == {0}, "it was chosen, so it says nothing of how far one agrees"
    assert left.key not in {item.comparison.key for item in items}
    assert len(list(Drawing(plan(queue), store, served={mine.key}))) == 2


def test_undone_comparisons_are_found_and_missing_ones_reported(tmp_path: Path, store: Path) -> None:
    comparison = kept(store, "undone")
    with PreferenceStore(store) as opened:
        opened.undo(opened.labels_of(comparison.key)[0].id, "ann")
    drawing = Drawing(plan(QueuePlan(queue="again", keys=("f" * 32, comparison.key))), store)
    assert [item.comparison.prompt for item in drawing] == ["undone"]
    assert drawing.mixture.problems == [f"1 of 2 comparisons are not in '{store}': import their source first"]
    nothing = Drawing(plan(QueuePlan(queue="again", keys=("f" * 32,))), tmp_path / "no.db")
    assert list(nothing) == []
    assert not (tmp_path / "no.db").exists()


def test_a_damaged_store_is_reported(tmp_path: Path) -> None:
    (tmp_path / "bad.db").write_bytes(b"no database at all " * 100)
    queue = dataset(tmp_path / "rows.jsonl", {"prompt": "p", "a": "x", "b": "y"})
    drawing = Drawing(plan(queue), tmp_path / "bad.db")
    assert list(drawing) == []
    assert "bad.db" in drawing.mixture.problems[0]
