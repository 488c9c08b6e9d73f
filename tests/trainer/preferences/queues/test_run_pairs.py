"""Pairs of a run: of its samples, written by its models on request, and in the order of a reward model."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Sequence
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from label_runs import Drawing, add_samples, answering, of_run, plan, run_folder, scoring

from trainer.errors import ModelError, UsageError
from trainer.preferences.records import Item, Origin, Text
from trainer.questions import Question, unanswered


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


def by_name(model: str, completion: str) -> float:
    """Return a fixed score that differs for every model and completion."""
    return float(np.random.default_rng([*model.encode(), *completion.encode()]).normal())


def scored_before_drawing(drawing: Drawing) -> Drawing:
    """Begin to draw, and wait for the scores; what is drawn before is random."""
    drawing.mixture.draw()
    assert drawing.came.wait(60)
    return drawing


def difference(item: Item, model: str) -> float:
    first, second = (by_name(model, str(completion)) for completion in item.comparison.completions)
    return first - second


def test_uncertain_pairs_are_those_of_least_difference_except_for_the_random_share(tmp_path: Path, store: Path) -> None:
    run = run_folder(tmp_path / "run", prompts=60)
    queue = of_run("uncertain", run, model="m1")
    drawing = scored_before_drawing(Drawing(plan(queue, random=0.2), store, score=scoring(by_name)))
    items = list(drawing)
    assert len(items) == 59, "all but the first"
    sizes = [abs(difference(item, "m1")) for item in items]
    ascending = best_chain(sizes)
    assert ascending >= 0.79 * len(items), "in order, but for those at random"
    assert np.mean(sizes[:10]) < np.mean(sizes) / 2
    scores = {one: by_name("m1", str(one)) for one in items[0].comparison.completions}
    assert items[0].comparison.columns["reward_models"] == {"m1": list(scores.values())}


def best_chain(values: Sequence[float]) -> int:
    """Return the length of the longest ascending subsequence of `values`."""
    ends: list[float] = []
    for value in values:
        place = int(np.searchsorted(ends, value))
        ends[place : place + 1] = [value]
    return len(ends)


def test_nobody_waits_for_the_first_scores(tmp_path: Path, store: Path) -> None:
    may_score = threading.Event()

    def slowly(model: str, rows: Sequence[tuple[Text, Text]]) -> list[float]:
        assert may_score.wait(60)
        return [by_name(model, str(completion)) for _, completion in rows]

    run = run_folder(tmp_path / "run", prompts=60)
    drawing = Drawing(plan(of_run("uncertain", run, model="runs/rm-0001")), store, score=slowly)
    first = [item for _ in range(20) if (item := drawing.mixture.draw()) is not None]
    assert len(first) == 8, "six in advance, and the two that are due of eight"
    assert drawing.mixture.waiting == "scoring samples with rm-0001"
    may_score.set()
    later = list(islice(drawing, 28))
    assert sum("reward_models" not in item.comparison.columns for item in later) == 0, "the share was had in advance"


def test_newer_samples_are_scored_on_arrival_and_older_ones_when_few_are_left(tmp_path: Path, store: Path) -> None:
    run = run_folder(tmp_path / "run", iterations=4, prompts=32)
    calls: list[tuple[str, int]] = []
    with run.lock():
        drawing = Drawing(plan(of_run("uncertain", run, model="m1"), random=0.0), store, score=scoring(by_name, calls))
        scored_before_drawing(drawing)
        seen = {item.comparison.origins[0].iteration for item in islice(drawing, 20)}
        assert seen <= {3, 4}
        assert calls == [("m1", 128)]
        add_samples(run, 5, prompts=64)
        list(islice(drawing, 1))
        assert drawing.came.wait(60) or len(calls) == 2
        assert calls == [("m1", 128)] * 2
        assert 5 in {item.comparison.origins[0].iteration for item in islice(drawing, 20)}
    iterations = {item.comparison.origins[0].iteration for item in drawing}
    assert {1, 2} <= iterations
    assert drawing.mixture.exhausted


def test_pairs_that_a_model_cannot_score_are_left_to_chance(tmp_path: Path, store: Path) -> None:
    run = run_folder(tmp_path / "run", prompts=40)
    values: Callable[[str, str], float] = lambda model, text: math.nan if "prompt 3" in text else by_name(model, text)  # noqa: E731
    drawing = scored_before_drawing(
        Drawing(plan(of_run("uncertain", run, model="m1"), random=0.0), store, score=scoring(values))
    )
    prompts = [str(item.comparison.prompt) for item in drawing]
    assert len(prompts) == 39
    unscored = [prompt.startswith("prompt 3") for prompt in prompts]
    assert unscored == sorted(unscored), "last of all"


@pytest.mark.parametrize("wrong", ["raises", "too few"])
def test_a_failing_reward_model_is_reported(tmp_path: Path, store: Path, wrong: str) -> None:
    def score(model: str, rows: Any) -> list[float]:
        if wrong == "raises":
            raise ModelError("reward model 'm1' scores nothing: no reward model there")
        return [1.0]

    drawing = Drawing(plan(of_run("uncertain", run_folder(tmp_path / "run"), model="m1")), store, score=score)
    list(drawing)
    (reported,) = drawing.mixture.problems
    assert "reward model 'm1'" in reported


def test_a_missing_scorer_is_reported(tmp_path: Path, store: Path) -> None:
    drawing = Drawing(plan(of_run("uncertain", run_folder(tmp_path / "run"), model="m1")), store)
    assert list(drawing) == []
    assert drawing.mixture.problems == ["nothing can score pairs here: choose another queue"]


def drawing(run: Any, store: Path, **context: Any) -> Drawing:
    return Drawing(plan(of_run("policy-reference", run)), store, **context)


def test_policy_and_reference_write_one_each_to_a_prompt_of_the_newest_iteration(tmp_path: Path, store: Path) -> None:
    asked: list[Question] = []
    run = run_folder(tmp_path / "run", iterations=2, prompts=2, samples=1, columns='{"mood": "warm"}')
    run.checkpoint(7).mkdir(parents=True)
    item, *_ = islice(drawing(run, store, ask=answering(asked)), 2)
    policy, reference = asked[:2]
    assert (policy.writer, policy.count, reference.writer, reference.count) == ("policy", 1, "reference", 1)
    assert policy.seed != reference.seed
    assert policy.prompt == reference.prompt == item.comparison.prompt
    assert policy.prompt_tokens == [int(str(item.comparison.prompt)[-1]), 1], "what the model read in the run"
    assert policy.columns == {"mood": "warm"}
    assert item.queue == "policy-reference"
    assert set(map(repr, item.comparison.origins)) == {
        repr(Origin(source="run", run="run", iteration=7, checkpoint="step-000007", writer=question.writer,
                    sampling={"seed": question.seed}))
        for question in (policy, reference)
    }  # fmt: skip
    assert item.comparison.columns == {"scores": [0.0, 0.0], "lengths": [3, 3]}


def test_prompts_come_again_when_all_had_their_turn_with_other_seeds(tmp_path: Path, store: Path) -> None:
    asked: list[Question] = []
    run = run_folder(tmp_path / "run", iterations=2, prompts=2, samples=1)
    items = list(islice(drawing(run, store, ask=answering(asked)), 9))
    assert len({item.comparison.key for item in items}) == 9
    assert len({question.seed for question in asked}) == len(asked)
    for begin in (0, 2, 4, 6):
        assert {item.comparison.prompt for item in items[begin : begin + 2]} == {"prompt 0", "prompt 1"}


def test_a_run_without_samples_gives_the_prompts_of_its_data(tmp_path: Path, store: Path) -> None:
    (tmp_path / "prompts.txt").write_text("one\ntwo\n")
    run = run_folder(tmp_path / "run", iterations=0, saves=False)
    run.config.write_text(f'[data]\nprompts = "{tmp_path}/prompts.txt"\n')
    asked: list[Question] = []
    items = list(islice(drawing(run, store, ask=answering(asked)), 2))
    assert {item.comparison.prompt for item in items} == {"one", "two"}
    assert asked[0].prompt_tokens is None, "to be rendered as the run does"


def test_models_that_write_nothing_new_are_no_longer_asked(tmp_path: Path, store: Path) -> None:
    asked: list[Question] = []
    run = run_folder(tmp_path / "run", prompts=2, samples=1)
    drawn = drawing(run, store, ask=answering(asked, lambda question, place: question.writer))
    assert len(list(drawn)) == 2
    assert len(asked) == 2 * (2 + 20)
    assert "writes nothing new" in drawn.mixture.problems[0]


def test_a_refused_prompt_is_skipped_and_three_in_a_row_end_the_queue(tmp_path: Path, store: Path) -> None:
    run = run_folder(tmp_path / "run", prompts=6, samples=1)
    count, write = 0, answering()

    def ask(question: Question) -> Any:
        nonlocal count
        count += 1
        if count in (1, 2) or count > 8:
            return unanswered(question, "the prompt has 900 tokens")
        if count == 3:
            raise UsageError("run 'run' ended before it answered: ask again")
        return write(question)

    drawn = drawing(run, store, ask=ask)
    assert len(list(drawn)) == 0, "three in a row"
    assert drawn.mixture.problems == ["run 'run' writes no more pairs: run 'run' ended before it answered: ask again"]
    count = 1
    drawn = drawing(run, store, ask=ask)
    assert len(list(drawn)) == 2, "two in a row were passed over, two pairs written, then refused for good"
    assert drawn.mixture.problems == ["run 'run' writes no more pairs: the prompt has 900 tokens"]


def test_an_error_of_the_models_library_is_reported_in_words(tmp_path: Path, store: Path) -> None:
    def ask(question: Question) -> Any:
        raise RuntimeError("[metal::malloc]\nout of memory")

    drawn = drawing(run_folder(tmp_path / "run"), store, ask=ask)
    assert list(drawn) == []
    assert drawn.mixture.problems == ["policy and reference are writing pair 1: [metal::malloc] out of memory"]
