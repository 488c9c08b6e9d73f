"""A saved policy answers as the run itself did, and missing files are reported."""

from __future__ import annotations

import dataclasses
import math
import shutil
from pathlib import Path

import pytest
from runs_helper import Recorder, flip, tiny_config

from trainer.engine.answers import SavedPolicy
from trainer.engine.control import Control
from trainer.engine.training import train
from trainer.errors import ConfigError, ModelError, StorageError, TrainerError, UsageError
from trainer.events import StateChanged
from trainer.questions import Answer, Question
from trainer.rewards import trust_all
from trainer.runs.folder import RunFolder

QUESTION = Question(prompt="one", prefix=[65], count=3)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Answer]]:
    """Return a run of three iterations, and what it answered before each of them."""
    folder = tmp_path_factory.mktemp("run")
    control, reported = Control(), list[Answer]()

    def ask(event: object) -> None:
        if event == StateChanged(state="training"):
            control.ask(QUESTION, reported.append)

    settings = tiny_config(folder, "run.name=a", "checkpoint.keep=0", "eval.every=0", "reward.normalize='running'")
    train(settings, sinks=[Recorder(ask)], control=control)
    return folder / "runs/a", reported


@pytest.fixture
def run(finished: tuple[Path, list[Answer]], tmp_path: Path) -> RunFolder:
    """Copy the run, to be damaged."""
    return RunFolder(shutil.copytree(finished[0], tmp_path / "a"))


def ask(policy: SavedPolicy, question: Question = QUESTION) -> Answer:
    return policy.answer(question, lambda: None)


def timeless(answer: Answer) -> Answer:
    return dataclasses.replace(answer, seconds=0.0)


def test_each_checkpoint_answers_to_the_bit_as_the_run_did_at_that_iteration(
    finished: tuple[Path, list[Answer]],
) -> None:
    folder, reported = finished
    by_iteration = {answer.iteration: timeless(answer) for answer in reported}
    assert {1, 2} <= set(by_iteration)
    policy = SavedPolicy(RunFolder(folder), "step-000001", trust=trust_all)
    assert (policy.iteration, timeless(ask(policy))) == (1, by_iteration[1])
    policy.use("step-000002")
    assert (policy.iteration, timeless(ask(policy))) == (2, by_iteration[2])
    policy.use("")
    assert policy.iteration == 3
    policy.use("step-000001")
    assert timeless(ask(policy)) == by_iteration[1]


def test_a_run_without_checkpoints_answers_as_its_reference(run: RunFolder) -> None:
    shutil.rmtree(run.checkpoints)
    policy = SavedPolicy(run, trust=trust_all)
    answer = ask(policy)
    assert (policy.iteration, answer.iteration, answer.problem) == (0, 0, "")
    for completion in answer.completions:
        assert completion.logprobs == completion.ref_logprobs
    reference = ask(policy, dataclasses.replace(QUESTION, writer="reference"))
    assert reference.completions == answer.completions


def test_the_newest_checkpoint_that_is_whole_answers(run: RunFolder) -> None:
    (run.checkpoint(3) / "policy/adapters.safetensors").write_bytes(b"cut")
    assert SavedPolicy(run, trust=trust_all).iteration == 2
    with pytest.raises(
        UsageError, match=r"has no complete checkpoint 'step-000003'; available: step-000001, step-000002$"
    ):
        SavedPolicy(run, "step-000003")


def test_the_checkpoint_before_damaged_ones_answers_and_these_are_named(run: RunFolder) -> None:
    before = timeless(ask(SavedPolicy(run, "step-000001", trust=trust_all)))
    for number in (2, 3):
        adapters = run.checkpoint(number) / "policy/adapters.safetensors"
        flip(adapters, adapters.stat().st_size * 8 - 9)
    policy = SavedPolicy(run, trust=trust_all)
    problem = "; ".join(
        f"checkpoint 'step-00000{number}' ignored: policy/adapters.safetensors is not what was written"
        for number in (3, 2)
    )
    for _ in range(2):
        assert timeless(ask(policy)) == dataclasses.replace(before, problem=problem)
        policy.use("")
    policy.use("step-000001")
    assert timeless(ask(policy)) == before
    shutil.rmtree(run.checkpoint(1))
    with pytest.raises(StorageError, match=r"^no checkpoint of run 'a' can be used \(checkpoint 'step-000003' ignored"):
        SavedPolicy(run, trust=trust_all)
    (run.checkpoint(3) / "state.json").unlink()
    (run.checkpoint(2) / "state.json").unlink()
    with pytest.raises(StorageError, match=r"^no checkpoint of run 'a' can be used .*state.json is missing"):
        SavedPolicy(run, trust=trust_all)


def test_a_policy_answers_even_without_its_reward(run: RunFolder) -> None:
    text = run.config.read_text()
    run.config.write_text(text.replace("rewards.py:score", "moved.py:score"))
    answer = ask(SavedPolicy(run, trust=trust_all))
    assert "moved.py:score': no file" in answer.problem
    assert len(answer.completions) == 3
    assert all(math.isnan(completion.score) for completion in answer.completions)


@pytest.mark.parametrize(
    ("old", "new", "error", "reported"),
    [
        ("seed = 0", "seed = [", ConfigError, "not TOML"),
        ("seed = 0", "sead = 0", ConfigError, "sead"),
        ("/model", "/nowhere", ModelError, "nowhere"),
    ],
)
def test_a_policy_that_cannot_be_loaded_is_reported(
    run: RunFolder, old: str, new: str, error: type[TrainerError], reported: str
) -> None:
    text = run.config.read_text()
    assert old in text
    run.config.write_text(text.replace(old, new))
    with pytest.raises(error, match=reported):
        SavedPolicy(run, trust=trust_all)


def test_a_checkpoint_of_a_newer_version_is_reported_and_the_former_one_still_answers(run: RunFolder) -> None:
    policy = SavedPolicy(run, "step-000001", trust=trust_all)
    before = ask(policy)
    state = run.checkpoint(2) / "state.json"
    state.write_text(state.read_text().replace('"format": 1', '"format": 99'))
    with pytest.raises(StorageError, match="newer version"):
        policy.use("step-000002")
    assert timeless(ask(policy)) == timeless(before)
