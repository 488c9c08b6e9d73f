"""The queue of a run's samples: pairs of one prompt, newest iteration first, read no further than asked."""

from __future__ import annotations

import json
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from label_runs import Drawing, add_samples, answering, of_run, plan, run_folder

from trainer.preferences.queues import run_pairs
from trainer.preferences.records import Origin
from trainer.questions import Question


def iterations(drawing: Any) -> list[int | None]:
    return [item.comparison.origins[0].iteration for item in drawing]


def test_every_two_samples_of_a_prompt_are_compared_once_in_the_newest_iteration_first(
    tmp_path: Path, store: Path
) -> None:
    run = run_folder(tmp_path / "run", iterations=2, prompts=3, samples=4)
    items = list(Drawing(plan(of_run("samples", run)), store))
    assert [item.comparison.origins[0].iteration for item in items] == [2] * 18 + [1] * 18
    pairs = {frozenset(map(str, item.comparison.completions)) for item in items}
    assert pairs == {
        frozenset(f"iteration {iteration} prompt {prompt} sample {sample}" for sample in two)
        for iteration in (1, 2)
        for prompt in range(3)
        for two in combinations(range(4), 2)
    }
    assert len({item.comparison.prompt for item in items[:3]}) == 3, "each prompt once before any a second time"


def test_the_origin_of_a_completion_is_kept_and_hidden_facts_are_in_the_columns(tmp_path: Path, store: Path) -> None:
    run = run_folder(tmp_path / "quick-1", iterations=3, prompts=1)
    run.checkpoint(2).mkdir(parents=True)
    (item, *_) = Drawing(plan(of_run("samples", run)), store)
    comparison = item.comparison
    assert comparison.completions == ("iteration 3 prompt 0 sample 0", "iteration 3 prompt 0 sample 1")
    assert comparison.origins == tuple(
        Origin(
            source="run", run="quick-1", iteration=3, row=row, checkpoint="step-000002", writer="policy",
            sampling={"temperature": 0.7},
        )
        for row in (0, 1)
    )  # fmt: skip
    assert comparison.columns == {"scores": [0.0, 1.0], "lengths": [5, 6]}


def test_scores_follow_the_order_of_the_completions_which_is_that_of_their_texts(tmp_path: Path, store: Path) -> None:
    run = run_folder(tmp_path / "run", iterations=0)
    from trainer.runs.samples import write_samples

    rows = [{"row": n, "prompt": "p", "completion": text, "score": score, "length": n}
            for n, (text, score) in enumerate([("zebra", 1.0), ("apple", float("nan"))])]  # fmt: skip
    write_samples(run.samples_file(1), rows, 1)
    (item,) = Drawing(plan(of_run("samples", run)), store)
    assert item.comparison.completions == ("apple", "zebra")
    assert item.comparison.columns == {"scores": [None, 1.0], "lengths": [1, 0]}
    assert [origin.row for origin in item.comparison.origins] == [1, 0]
    assert item.comparison.origins[0].sampling == {}, "the file does not say"


def test_a_long_run_is_read_no_further_than_needed(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_folder(tmp_path / "run", iterations=1, prompts=32)
    for iteration in range(2, 2001):
        run.samples_file(iteration).symlink_to(run.samples_file(1))
    read, original = [], run_pairs.read_samples
    monkeypatch.setattr(
        run_pairs, "read_samples", lambda path, columns: (read.append(path), original(path, columns))[1]
    )
    assert len(list(islice(Drawing(plan(of_run("samples", run)), store), 32))) == 32
    assert set(read) == {run.samples_file(2000)}


def test_new_samples_of_a_live_run_go_first_and_are_waited_for(tmp_path: Path, store: Path) -> None:
    run = run_folder(tmp_path / "run", iterations=0)
    drawing = Drawing(plan(of_run("samples", run)), store)
    with run.lock():
        assert drawing.mixture.draw() is None
        assert drawing.mixture.waiting == "waiting for the samples of iteration 1"
        for iteration in (1, 2):
            add_samples(run, iteration, prompts=2)
        first = drawing.mixture.draw()
        add_samples(run, 3, prompts=2)
        assert first is not None
        assert first.comparison.origins[0].iteration == 2
        assert [drawing.mixture.draw().comparison.origins[0].iteration for _ in range(5)] == [3, 3, 2, 1, 1]  # type: ignore[union-attr]
        assert drawing.mixture.draw() is None
        assert drawing.mixture.waiting == "waiting for the samples of iteration 4"
        assert not drawing.mixture.exhausted
        add_samples(run, 5, prompts=1)
        add_samples(run, 4, prompts=1)
        assert [drawing.mixture.draw().comparison.origins[0].iteration for _ in range(2)] == [5, 4]  # type: ignore[union-attr]
        add_samples(run, 6, prompts=1)
    assert iterations(drawing) == [6], "the last ones, though the run has ended meanwhile"
    assert drawing.mixture.exhausted


def test_a_live_run_that_keeps_no_samples_is_not_waited_for(tmp_path: Path, store: Path) -> None:
    run = run_folder(tmp_path / "run", iterations=0, saves=False)
    drawing = Drawing(plan(of_run("samples", run)), store)
    with run.lock():
        assert drawing.mixture.draw() is None
        assert drawing.mixture.exhausted
    assert drawing.mixture.problems == [
        "run 'run' has no samples: train with run.save_samples = true, or choose another run"
    ]


def test_prompts_are_those_of_the_data_and_answers_to_messages_are_messages(tmp_path: Path, store: Path) -> None:
    messages = [{"role": "user", "content": "Why is the sky blue?"}]
    run = run_folder(
        tmp_path / "run", prompts=1, prompt="<user>Why?</user>", source_prompt=json.dumps(messages), completion="Light."
    )
    (item,) = Drawing(plan(of_run("samples", run)), store)
    assert item.comparison.prompt == messages
    assert item.comparison.completions == ([{"role": "assistant", "content": "Light."}],) * 2, "the same, given as is"


@pytest.mark.parametrize("source", ["{", "[1]", "3", "[]", "null", "[" * 100_000])
def test_an_invalid_source_prompt_leaves_the_prompt_as_rendered(tmp_path: Path, store: Path, source: str) -> None:
    run = run_folder(tmp_path / "run", prompts=1, prompt="as rendered", source_prompt=source)
    (item,) = Drawing(plan(of_run("samples", run)), store)
    assert item.comparison.prompt == "as rendered"


def test_an_unreadable_file_is_left_out_and_reported(tmp_path: Path, store: Path) -> None:
    run = run_folder(tmp_path / "run", iterations=4, prompts=1)
    run.samples_file(4).write_bytes(b"PAR1 no more PAR1")
    run.samples_file(3).write_bytes(b"")
    table = pq.read_table(run.samples_file(2))
    broken = pa.array([b"\xff\xfe", b"\xff"]).view(pa.string())  # no UTF-8
    pq.write_table(
        table.set_column(table.schema.get_field_index("completion"), "completion", broken), run.samples_file(2)
    )
    drawing = Drawing(plan(of_run("samples", run)), store)
    assert iterations(drawing) == [1]
    for name, line in zip(("step-000004", "step-000003", "step-000002"), drawing.mixture.problems, strict=True):
        assert name in line
        assert "\n" not in line


def test_a_run_without_a_readable_file_ends_with_that_report(tmp_path: Path, store: Path) -> None:
    run = run_folder(tmp_path / "run", iterations=2)
    for iteration in (1, 2):
        run.samples_file(iteration).write_bytes(b"")
    for queue in ("samples", "policy-reference", "uncertain"):
        drawing = Drawing(
            plan(of_run(queue, run, model="rm")),
            store,
            ask=answering(),
            score=lambda model, rows: [0.0] * len(rows),
        )
        assert list(drawing) == []
        assert len(drawing.mixture.problems) == 2
        assert all("are damaged" in line for line in drawing.mixture.problems)


def test_where_prompts_have_one_sample_the_policy_writes_the_pairs(tmp_path: Path, store: Path) -> None:
    asked: list[Question] = []
    run = run_folder(tmp_path / "run", iterations=2, prompts=3, samples=1)
    items = list(islice(Drawing(plan(of_run("samples", run)), store, ask=answering(asked)), 3))
    assert {item.comparison.prompt for item in items} == {"prompt 0", "prompt 1", "prompt 2"}
    assert [(question.writer, question.count) for question in asked] == [("policy", 2)] * 3
    assert {origin.writer for item in items for origin in item.comparison.origins} == {"policy"}


def test_one_sample_per_prompt_and_no_model_to_ask_is_reported(tmp_path: Path, store: Path) -> None:
    run = run_folder(tmp_path / "run", iterations=5, samples=1)
    drawing = Drawing(plan(of_run("samples", run)), store)
    assert list(drawing) == []
    (reported,) = drawing.mixture.problems
    assert reported.startswith("run 'run' has one sample of each prompt")
    assert "rollout.samples_per_prompt = 2" in reported


def test_very_many_samples_of_a_prompt_give_no_more_pairs_than_asked(tmp_path: Path, store: Path) -> None:
    run = run_folder(tmp_path / "run", prompts=1, samples=3000)
    rows = [
        origin.row
        for item in islice(Drawing(plan(of_run("samples", run)), store), 1500)
        for origin in item.comparison.origins
    ]
    assert max(rows.count(row) for row in set(rows)) <= 2, "each is compared about as often as any other"
