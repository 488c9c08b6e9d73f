"""A session's items: their shares, sides and repeats, and queues of existing material."""

from __future__ import annotations

import json
import math
import threading
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from label_runs import Drawing, answering, of_run, pair_rows, plan, run_folder
from preferences_helper import add_label

from trainer.preferences.records import Comparison, Item, Judgement, Origin, Preference, QueuePlan
from trainer.preferences.store import PreferenceStore


def label(store: Path, item: Item, choice: str = "a", labeller: str = "ann") -> int:
    with PreferenceStore(store) as opened:
        judgement = Judgement.chosen(choice, labeller=labeller, order_shown=item.order)  # type: ignore[arg-type]
        return add_label(opened, Preference(comparison=item.comparison, judgement=judgement))


def test_the_sides_are_fair_and_recorded(tmp_path: Path, store: Path) -> None:
    items = list(Drawing(plan(pair_rows(tmp_path / "pairs.jsonl", 2000)), store))
    assert len(items) == 2000
    assert {item.order for item in items} == {(0, 1), (1, 0)}
    first_left = sum(item.order == (0, 1) for item in items)
    assert abs(first_left - 1000) < 4 * math.sqrt(2000) / 2, "four standard deviations of a fair coin"
    runs = sum(a.order != b.order for a, b in pairwise(items))
    assert abs(runs - 1000) < 4 * math.sqrt(2000) / 2, "one side says nothing about the next"


def test_the_sides_follow_from_seed_labeller_and_comparison_alone(tmp_path: Path, store: Path) -> None:
    queue = pair_rows(tmp_path / "pairs.jsonl", 64)

    def orders(seed: int, labeller: str, skipped: int = 0) -> list[tuple[int, ...]]:
        drawn = list(Drawing(plan(queue, seed=seed), store, labeller=labeller))
        resumed = Drawing(
            plan(queue, seed=seed), store, labeller=labeller, served={i.comparison.key for i in drawn[:skipped]}
        )
        return [item.order for item in [*drawn[:skipped], *resumed]]

    assert orders(1, "ann") == orders(1, "ann", skipped=20)
    assert orders(1, "ann") != orders(2, "ann")
    assert orders(1, "ann") != orders(1, "bob"), "what one labeller sees on the left another may see on the right"


@pytest.mark.parametrize("weights", [(1, 1), (3, 1), (5, 3, 2), (0.7, 0.2, 0.1)])
def test_shares_hold_at_every_length_within_rounding(tmp_path: Path, store: Path, weights: tuple[float, ...]) -> None:
    runs = [run_folder(tmp_path / f"run-{n}", prompts=200, samples=2) for n in range(len(weights))]
    queues = [of_run("samples", run, weight=weight) for run, weight in zip(runs, weights, strict=True)]
    given = Counter[str]()
    for total, item in enumerate(islice(Drawing(plan(*queues), store), 200), 1):
        given[item.comparison.origins[0].run] += 1
        for run, weight in zip(runs, weights, strict=True):
            assert abs(given[run.name] - total * weight / sum(weights)) < 1 + 1e-9
    assert given.total() == 200


def test_a_queue_that_waits_holds_nobody_up_and_catches_up_later(tmp_path: Path, store: Path) -> None:
    may_write, write = threading.Event(), answering()

    def slowly(question: object) -> object:
        assert may_write.wait(60)
        return write(question)

    run = run_folder(tmp_path / "run", prompts=20, samples=1)
    queues = of_run("policy-reference", run), pair_rows(tmp_path / "pairs.jsonl", 100)
    drawing = Drawing(plan(*queues), store, ask=slowly)
    assert {item.queue for item in islice(drawing, 10)} == {"dataset"}
    assert drawing.mixture.draw() is not None
    assert drawing.mixture.waiting == "policy and reference are writing pair 1"
    may_write.set()
    later = Counter(item.queue for item in islice(drawing.items(hurry=False), 59))
    assert later == {"policy-reference": 35, "dataset": 24}, "35 of the 70 there are then"


def test_comparisons_already_judged_or_in_the_session_are_not_asked(tmp_path: Path, store: Path) -> None:
    queue = pair_rows(tmp_path / "pairs.jsonl", 10)
    everything = list(Drawing(plan(queue), store))
    label(store, everything[0])
    label(store, everything[1], "skip")
    label(store, everything[2], labeller="bob")
    undone = label(store, everything[3])
    with PreferenceStore(store) as opened:
        opened.undo(undone, "ann")
    served = {everything[4].comparison.key}
    asked = [item.comparison.prompt for item in Drawing(plan(queue), store, served=served)]
    assert asked == [f"question {n}" for n in (2, 3, 5, 6, 7, 8, 9)]


def test_many_known_comparisons_hold_up_no_other_queue(tmp_path: Path, store: Path) -> None:
    run = run_folder(tmp_path / "run", iterations=2, prompts=450)
    queue = of_run("samples", run)
    served = {item.comparison.key for item in islice(Drawing(plan(queue), store), 450)}
    drawing = Drawing(plan(queue, pair_rows(tmp_path / "pairs.jsonl", 5)), store, served=served)
    first = drawing.mixture.draw()
    assert first is None or first.queue == "dataset", "which is read in the background, so it may be there by now"
    assert drawing.mixture.waiting == "skipping comparisons judged before"
    alone = Drawing(plan(queue), store, served=served)
    assert (alone.mixture.draw(), alone.came.is_set()) == (None, True), "and goes on at once"
    assert Counter(item.queue for item in (first, *drawing) if item) == {"samples": 450, "dataset": 5}


def labelled_session(tmp_path: Path, store: Path, count: int, behind: int = 12, **more: float) -> list[Item]:
    """Return the items of a session whose labeller lags `behind` items and skips every ninth."""
    drawing = Drawing(plan(pair_rows(tmp_path / "pairs.jsonl", count), **more), store)
    items: list[Item] = []
    for item in drawing:
        items.append(item)
        if (place := len(items) - 1 - behind) >= 0:
            label(store, items[place], "skip" if place % 9 == 0 else "b")
    return items


def test_repeats_ask_own_labels_again_with_the_sides_swapped_and_not_soon(tmp_path: Path, store: Path) -> None:
    items = labelled_session(tmp_path, store, 150, repeats=0.1)
    places = {item.comparison.key: place for place, item in enumerate(items) if item.queue != "repeat"}
    repeats = [(place, item) for place, item in enumerate(items) if item.queue == "repeat"]
    assert len(repeats) == int(0.1 * len(items)), "the share"
    assert all(number <= 0.1 * (place + 1) for number, (place, _) in enumerate(repeats, 1)), "and never more than it"
    for place, item in repeats:
        original = items[places[item.comparison.key]]
        assert item.order == original.order[::-1]
        assert place - places[item.comparison.key] > 20
        assert places[item.comparison.key] % 9 or items[places[item.comparison.key]].queue == "repeat", "no skip"
        with PreferenceStore(store) as opened:
            assert [one.id for one in opened.labels_of(item.comparison.key)][:1] == [item.repeats]
    assert len({item.comparison.key for _, item in repeats}) == len(repeats), "each once"


def test_unlabelled_items_are_not_repeated(tmp_path: Path, store: Path) -> None:
    drawing = Drawing(plan(pair_rows(tmp_path / "pairs.jsonl", 100), repeats=0.2), store)
    items = list(islice(drawing, 100))
    assert {item.queue for item in items} == {"dataset"}
    assert drawing.mixture.draw() is None
    assert not drawing.mixture.exhausted, "labels may come"
    made = label(store, items[0])
    repeated = next(item for _ in range(200) if (item := drawing.mixture.draw()) is not None)
    assert (repeated.repeats, repeated.comparison.key) == (made, items[0].comparison.key)


def test_a_resumed_session_repeats_earlier_items_after_twenty_new_ones(tmp_path: Path, store: Path) -> None:
    queue = pair_rows(tmp_path / "pairs.jsonl", 60)
    had = list(islice(Drawing(plan(queue), store), 30))
    for item in had:
        label(store, item)
    resumed = Drawing(plan(queue, repeats=0.5), store, served={item.comparison.key for item in had})
    queues = [item.queue for item in islice(resumed, 40)]
    assert queues[:21] == ["dataset"] * 21
    assert queues[21] == "repeat"


def test_an_empty_queue_is_left_out_and_reported_and_the_others_continue(tmp_path: Path, store: Path) -> None:
    empty = run_folder(tmp_path / "empty", iterations=0)
    queues = [
        QueuePlan(queue="samples", source=str(tmp_path / "nowhere")),
        of_run("samples", empty),
        QueuePlan(queue="dataset", source=str(tmp_path / "no.jsonl")),
        of_run("policy-reference", run_folder(tmp_path / "mute")),
        of_run("uncertain", run_folder(tmp_path / "run")),
        pair_rows(tmp_path / "pairs.jsonl", 7),
    ]
    drawing = Drawing(plan(*queues), store)
    assert len(list(drawing)) == 7
    reported = "\n".join(sorted(drawing.mixture.problems))
    assert len(drawing.mixture.problems) == 5, reported
    for words in (
        "no run 'nowhere' in",
        "run 'empty' has no samples: train with run.save_samples = true",
        "no.jsonl': no such file",
        "run 'mute' has no model that could write pairs now",
        "needs a reward model: name one",
    ):
        assert words in reported


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


def test_broken_rows_are_skipped_and_counted(tmp_path: Path, store: Path) -> None:
    good = {"prompt": "p", "a": "x", "b": "y"}
    half = dict.fromkeys(good, "\ud83d")
    odd = [dict.fromkeys(good, 3), half, {"prompt": " ", **{name: good[name] for name in list(good)[1:]}}, {"q": 1}]
    queue = dataset(tmp_path / "rows.jsonl", "{not json", good, *odd, '{"prompt": ' + "[" * 50_000)
    drawing = Drawing(plan(queue), store)
    assert [item.comparison.prompt for item in drawing] == ["p"]
    (reported,) = drawing.mixture.problems
    assert reported.startswith(f"6 broken rows of '{queue.source}' skipped, the first: {queue.source}:1: not JSON")


def kept(store: Path, prompt: str, *, labeller: str = "ann", shown: tuple[int, ...] = (1, 0)) -> Comparison:
    comparison = Comparison(prompt=prompt, completions=("x", "y"))
    judgement = Judgement.chosen("a", labeller=labeller, order_shown=shown)
    with PreferenceStore(store) as opened:
        add_label(opened, Preference(comparison=comparison, judgement=judgement))
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
