"""The store keeps what it is given, and forgets nothing; a comparison is the same in any order."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields, replace
from itertools import islice, permutations
from pathlib import Path

import pytest
from preference_rows import pair
from preferences_helper import add_label, preference, preferences, stored_events
from store_damage import alter

from trainer.errors import DataError, StorageError, UsageError
from trainer.preferences.records import Comparison, Judgement, Origin, Preference, Text
from trainer.preferences.store import PAGE, Counts, PreferenceStore, check_store

FULL = Preference(
    comparison=Comparison(
        prompt=[{"role": "user", "content": "Naïve? \x00\x1b[2J\ud800 北"}],
        completions=("line\nline", [{"role": "assistant", "content": "[/x]"}], ""),
        origins=(
            Origin(
                source="run",
                run="r",
                iteration=0,
                row=0,
                checkpoint="step-000001",
                writer="policy",
                sampling={"temperature": 0.0},
            ),
            Origin(),
            Origin(writer="human"),
        ),
        columns={"score": 1.5, "tags": ["a", None], "nested": {"deep": True}},
    ),
    judgement=Judgement(
        ranking=((2,), (0, 1)),
        strength=3,
        labeller="änn",
        note="n\n",
        flags=("unsafe", "long"),
        seconds=0.0,
        order_shown=(1, 2, 0),
        guidelines="f00",
        time=12.5,
    ),
)
A, B, C = (preference(name) for name in "ABC")


ORDERS = list(permutations(range(3)))
THREE = Comparison(prompt="p", completions=("one", [{"role": "assistant", "content": "two"}], "three"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PreferenceStore]:
    with PreferenceStore(tmp_path / "preferences.db") as store:
        yield store


def undated(given: Preference) -> Preference:
    return replace(given, id=0, judgement=replace(given.judgement, time=None))


def test_a_label_comes_back_as_it_was_given_with_its_id(store: PreferenceStore) -> None:
    for record in (FULL.judgement, FULL.comparison, FULL.comparison.origins[0]):
        default = {field.name for field in fields(record) if field.name not in ("verdict",)}
        assert all(getattr(record, name) not in ("", None, (), {}) for name in default), "every field has its test"
    id_ = add_label(store, FULL)
    with PreferenceStore(store.path, create=False) as other:
        assert list(other.preferences()) == [replace(FULL, id=id_)]
        assert other.comparison(FULL.comparison.key) == FULL.comparison
    store.undo(id_, "ann")
    assert store.comparison(FULL.comparison.key) == replace(FULL.comparison, origins=(), columns={})
    assert store.comparison("f00") is None


def test_labels_come_in_the_order_of_labelling_over_many_pages(store: PreferenceStore) -> None:
    given = [p for p in preferences(3 * PAGE + 1) if p.judgement.verdict != "skip"]
    assert store.add_many(given, source="file") == (len(given), 0)
    kept = list(store.preferences())
    assert [undated(p) for p in kept] == given
    assert [p.id for p in kept] == sorted({p.id for p in kept})


def test_preferences_are_chosen_by_labeller_and_source(store: PreferenceStore) -> None:
    add_label(store, A)
    store.add_many([replace(B, judgement=replace(B.judgement, labeller="\udc80")), C], source="file")
    chosen: list[tuple[dict[str, str], str]] = [
        ({"labeller": "ann"}, "AC"),
        ({"labeller": "\udc80"}, "B"),
        ({"source": "file"}, "BC"),
        ({"source": ""}, "A"),
        ({"labeller": "ann", "source": "file"}, "C"),
        ({"labeller": ""}, ""),
    ]
    for by, prompts in chosen:
        assert "".join(str(p.comparison.prompt) for p in store.preferences(**by)) == prompts


def test_preferences_are_chosen_by_the_run_that_wrote_their_completions(store: PreferenceStore) -> None:
    def of_run(run: str, prompt: str) -> Preference:
        origins = (Origin(source="run", run=run), Origin(source="run", run=run, writer="reference"))
        return replace(A, comparison=replace(A.comparison, prompt=prompt, origins=origins))

    given = [of_run("run-1", "p"), of_run("run-10", "q"), of_run('"é}', "r"), preference("elsewhere", "x", "y"), A]
    store.add_many(given, source="file")
    again = of_run("run-10", "p")
    add_label(store, again)
    found = {run: [p.comparison.prompt for p in store.preferences(run=run)] for run in ("run-1", "run-10", '"é}', "r")}
    assert found == {"run-1": ["p"], "run-10": ["q", "p"], '"é}': ["r"], "r": []}


def test_the_newest_preferences_come_first_and_the_older_ones_are_not_read(store: PreferenceStore) -> None:
    store.add_many(preferences(60), source="file")
    store.undo(add_label(store, A), "ann")
    store.add_many([B], source="other")
    expected = list(store.preferences(with_skips=True))[::-1]
    assert store.newest(7) == expected[:7]
    assert store.newest(1000) == expected
    assert store.newest(2, source="file") == expected[1:3]
    assert store.newest(2, labeller="nobody") == []
    alter(store.path, "UPDATE events SET payload = 'damaged' WHERE id = 1")
    assert store.newest(7) == expected[:7]
    with pytest.raises(StorageError):
        store.newest(1000)


def test_a_comparison_given_in_another_order_is_the_same_and_its_judgement_follows(store: PreferenceStore) -> None:
    first = Comparison(prompt="p", completions=("x", "y", "z"))
    again = Comparison(prompt="p", completions=("z", "x", "y"))
    add_label(store, Preference(comparison=first, judgement=Judgement(ranking=((0,), (1,), (2,)))))
    add_label(store, Preference(comparison=again, judgement=Judgement(ranking=((0,), (1, 2)), order_shown=(0, 1, 2))))
    assert store.counts().comparisons == 1
    _, kept = store.labels_of(again.key)
    assert kept.comparison.completions == ("x", "y", "z")
    assert kept.judgement.ranking == ((2,), (0, 1))  # z, then x and y
    assert kept.judgement.order_shown == (2, 0, 1)


def test_an_undone_label_no_longer_counts_and_the_log_has_both(store: PreferenceStore) -> None:
    first, second = add_label(store, A), add_label(store, B)
    undo = store.undo(first, "bob")
    assert [p.id for p in store.preferences()] == [second]
    assert store.labels_of(A.comparison.key) == []
    log = [(e.id, e.kind, e.key, e.labeller, e.undoes) for e in stored_events(store)]
    assert log == [
        (first, "label", A.comparison.key, "ann", None),
        (second, "label", B.comparison.key, "ann", None),
        (undo, "undo", A.comparison.key, "bob", first),
    ]
    for event, rule in ((first, "undone already"), (undo, "an undo, which cannot be undone"), (99, "no label 99")):
        with pytest.raises(UsageError, match=rule):
            store.undo(event, "ann")
    assert len(stored_events(store)) == 3
    again = add_label(store, A)
    assert [p.id for p in store.labels_of(A.comparison.key)] == [again]


def test_existing_labels_are_counted_and_not_added_again(store: PreferenceStore) -> None:
    swapped = replace(A.at(1, 0), comparison=Comparison(prompt="A", completions=A.comparison.completions[::-1]))
    others = [
        replace(A, judgement=replace(A.judgement, labeller="bob")),
        replace(A, judgement=replace(A.judgement, note="look")),
        replace(A, judgement=replace(A.judgement, seconds=3.0)),
        replace(A, judgement=A.at(1, 0).judgement),
    ]
    assert store.add_many([A, A, swapped, B], source="file") == (2, 2)
    assert store.add_many([*others, A], source="file") == (4, 1)
    assert store.add_many([A], source="other file") == (1, 0)
    store.undo(next(store.preferences()).id, "ann")
    assert store.add_many([A], source="file") == (1, 0), "what was undone may come again"


def test_an_undone_import_leaves_the_same_labels_from_elsewhere(store: PreferenceStore) -> None:
    made = [pair(str(number), "x", "y", labeller="ann") for number in range(1500)]
    store.add_many(made[:700], source="a.jsonl")
    store.add_many(made, source="a.jsonl")
    store.add_many(made[:3], source="b.jsonl")
    add_label(store, made[0])
    newest, second, first = store.imports()
    assert [(one.source, one.labels, one.undone) for one in (newest, second, first)] == [
        ("b.jsonl", 3, 0),
        ("a.jsonl", 800, 0),
        ("a.jsonl", 700, 0),
    ]
    assert store.undo_import(first, "bob") == 700
    assert store.undo_import(first, "bob") == 0
    assert store.counts().labels == 800 + 3 + 1
    assert store.imports()[-1].undone == 700
    assert check_store(store) == []
    assert store.add_many(made[:700], source="a.jsonl")[0] == 700


def test_an_import_that_breaks_leaves_whole_thousands(store: PreferenceStore) -> None:
    def breaking() -> Iterator[Preference]:
        yield from preferences(2500)
        raise DataError("line 2501")

    with pytest.raises(DataError, match="2501"):
        store.add_many(breaking(), source="file")
    assert store.counts().labels == 2000
    assert store.add_many(preferences(2500), source="file") == (500, 2000)


def test_counts_agree_with_counting(store: PreferenceStore) -> None:
    assert store.counts() == Counts(0, 0, 0, 0, {}, {})
    store.add_many(preferences(300), source="file")
    store.add_many(preferences(100, labeller="bob"), source="file")
    for p in list(islice(store.preferences(), 0, 60, 7)):
        store.undo(p.id, "ann")
    add_label(store, FULL)
    standing = list(store.preferences(with_skips=True))
    counts = store.counts()
    assert counts.comparisons == 301
    assert (counts.labels, counts.undone) == (len(standing), 9) == (392, 9)
    assert counts.choices == Counter(p.judgement.choice or "ranking" for p in standing)
    assert counts.labellers == Counter(p.judgement.labeller for p in standing)
    assert counts.skips == counts.labels - len(list(store.preferences())) > 0


@pytest.mark.parametrize(  # the other rules: as of rows that are imported
    ("given", "rule"),
    [
        (replace(A, judgement=Judgement(ranking=((0,), (1,), (1,)))), "groups of the places"),
        (replace(A, judgement=Judgement(ranking=((0, 1), ()))), "groups of the places"),
        (replace(A, judgement=Judgement.chosen("a", order_shown=(0, 2))), "order_shown is "),
        (replace(A, judgement=Judgement.chosen("a", seconds=float("nan"))), "seconds is nan: must be a finite number"),
        (replace(A, comparison=replace(A.comparison, columns={"at": Path()})), "plain JSON values"),
        (replace(A, comparison=Comparison(prompt="p", completions=("one", None))), "a string, or a list of messages"),  # type: ignore[arg-type]
    ],
)
def test_invalid_labels_are_not_saved(store: PreferenceStore, given: Preference, rule: str) -> None:
    with pytest.raises(DataError, match=rule):
        add_label(store, given)
    with pytest.raises(DataError, match=rule):
        store.add_many([B, given], source="file")
    assert store.counts().comparisons == 0


def test_a_slow_reader_does_not_keep_the_log_from_being_emptied(store: PreferenceStore) -> None:
    store.add_many(preferences(2 * PAGE), source="file")
    drawing = store.preferences()
    next(drawing)
    with PreferenceStore(store.path) as other:
        add_label(other, A)
        busy, *_ = other.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert busy == 0
    assert store.path.with_name("preferences.db-wal").stat().st_size == 0
    assert "A" not in [p.comparison.prompt for p in drawing], "it came after the first was drawn"


def test_the_texts_of_a_store_can_be_read_by_anyone_with_sqlite(store: PreferenceStore) -> None:
    add_label(store, preference("北 wind", "é", "\ud800"))
    with closing(sqlite3.connect(store.path)) as raw:
        prompt, completions = raw.execute("SELECT prompt, completions FROM comparisons").fetchone()
    assert prompt == '"北 wind"'
    assert completions == '["é","\\ud800"]'
    assert json.loads(completions) == ["é", "\ud800"]


def test_the_store_loads_no_heavy_package() -> None:
    program = "import sys, trainer.preferences.store; print(*{name.partition('.')[0] for name in sys.modules})"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert not {"mlx", "numpy", "pyarrow", "datasets"} & set(result.stdout.split())


def test_the_newest_label_of_a_comparison_decides_whether_it_is_flagged(store: PreferenceStore) -> None:
    one, other, third = (Comparison(prompt=prompt, completions=("x", "y")) for prompt in "abc")

    def label(comparison: Comparison, labeller: str, *flags: str, note: str = "", choice: str = "a") -> int:
        judgement = Judgement.chosen(choice, labeller=labeller, flags=flags, note=note)  # type: ignore[arg-type]
        return add_label(store, Preference(comparison=comparison, judgement=judgement))

    assert store.flagged() == []
    label(other, "ann", "flagged")
    label(one, "ann", "flagged", choice="skip")
    label(third, "ann", "odd", note='"flags": flagged')
    assert store.flagged() == [other.key, one.key]
    lifted = label(other, "bob")
    assert store.flagged() == [one.key]
    store.undo(lifted, "bob")
    assert store.flagged() == [other.key, one.key]


@pytest.mark.parametrize("order", ORDERS)
def test_a_preference_in_another_order_has_the_same_key_and_says_the_same(order: tuple[int, ...]) -> None:
    judgement = Judgement(ranking=((2,), (0, 1)), order_shown=(2, 0, 1), labeller="ann", note="n", seconds=1.5)
    origins = tuple(Origin(row=row) for row in range(3))
    columns = {"scores": [0.0, 1.0, 2.0], "reward_models": {"rm": [0.0, 1.0, 2.0]}, "years": [7, 8, 9]}
    given = Preference(comparison=replace(THREE, origins=origins, columns=columns), judgement=judgement)
    found = given.at(*order)
    assert found.comparison.completions == tuple(THREE.completions[place] for place in order)
    assert found.comparison.key == THREE.key
    assert len(THREE.key) == 32
    assert found.judgement.choice == judgement.choice
    shown = [order[place] for place in found.judgement.order_shown]
    assert shown == [2, 0, 1]
    assert [sorted(order[place] for place in group) for group in found.judgement.ranking] == [[2], [0, 1]]
    assert [origin.row for origin in found.comparison.origins] == list(order) == found.comparison.columns["scores"]
    assert found.comparison.columns["reward_models"]["rm"] == list(order)
    assert found.comparison.columns["years"] == [7, 8, 9]
    assert found.at(*map(order.index, range(3))) == given


@pytest.mark.parametrize(
    ("prompt", "completions"),
    [
        ("q", ("one", "two")),
        ("p", ("one", "two", "two")),
        ("one", ("p", "two")),
        ("p", ("one", [{"role": "user", "content": "two"}])),
        ("p", ("one", '[{"content": "two", "role": "assistant"}]')),  # text that looks like messages
        ("p", ("one", '"two"')),
    ],
)
def test_other_texts_have_another_key(prompt: str, completions: tuple[Text, ...]) -> None:
    cases = [("p", ("one", "two")), ("p", ("one", [{"role": "assistant", "content": "two"}]))]
    keys = {Comparison(prompt=prompt, completions=completions).key for prompt, completions in cases}
    assert Comparison(prompt=prompt, completions=completions).key not in keys
