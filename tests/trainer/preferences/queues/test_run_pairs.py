"""Pairs that models write on request: who is asked what, how refusals are handled, and when it ends."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from label_runs import Drawing, answering, of_run, plan, run_folder

from trainer.errors import UsageError
from trainer.preferences.records import Origin
from trainer.questions import Question, unanswered


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "preferences.db"


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


def test_a_resumed_session_asks_with_other_seeds(tmp_path: Path, store: Path) -> None:
    run = run_folder(tmp_path / "run", prompts=2, samples=1)
    first, resumed = list[Question](), list[Question]()
    items = list(islice(drawing(run, store, ask=answering(first)), 3))
    served = {item.comparison.key for item in items}
    list(islice(drawing(run, store, ask=answering(resumed), served=served), 3))
    assert not {question.seed for question in first} & {question.seed for question in resumed}
