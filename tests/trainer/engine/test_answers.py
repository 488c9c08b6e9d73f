"""Answers of a model, in a run or saved: sampled, scored and rendered as in the run, which is left unchanged."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from runs_helper import Recorder, flip, tiny_config
from scripted_run import answered
from tiny import load_tiny

from trainer.config import Config, validate
from trainer.engine import answers
from trainer.engine.answers import SavedPolicy
from trainer.engine.control import Control
from trainer.engine.training import train
from trainer.errors import Interrupted, RewardError, StorageError, UsageError
from trainer.events import StateChanged
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.backbone import LoadedModel
from trainer.questions import Answer, Question, from_json, to_json
from trainer.rewards import RewardInput, RewardResult, trust_all
from trainer.runs.folder import RunFolder

END = 256
SETTINGS: dict[str, Any] = {"rollout": {"max_new_tokens": 12, "temperature": 0.8}, "data": {"max_prompt_tokens": 64}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models") / "model"


class Asked:
    """Tiny model with an active adapter, and its answers."""

    def __init__(self, folder: Path) -> None:
        self.model: LoadedModel = load_tiny(folder)
        self.config = validate(SETTINGS)
        self.actor = ActorCriticLLM(self.model.backbone, self.config.model, key=mx.random.key(1))
        self.actor.update_policy(
            {
                name: array + 0.3 * mx.random.normal(array.shape, key=mx.random.key(i))
                for i, (name, array) in enumerate(self.actor.policy_parameters().items())
            }
        )
        self.scored: list[RewardInput] = []

    def score(self, batch: Sequence[RewardInput]) -> RewardResult:
        self.scored += batch
        lengths = [float(len(row.completion_ids)) for row in batch]
        return RewardResult(lengths, None, {"length": [2 * length for length in lengths]})

    def __call__(
        self,
        question: Question,
        *,
        progress: Callable[[], None] = lambda: None,
        score: Callable[[Sequence[RewardInput]], RewardResult] | None = None,
        config: Config | None = None,
    ) -> Answer:
        return answers.answer(
            question,
            actor=self.actor,
            model=self.model,
            score=score or self.score,
            config=config or self.config,
            iteration=4,
            progress=progress,
        )

    def logprobs(self, tokens: list[int], start: int) -> np.ndarray:
        """Compute log-probs of tokens[start:] in float64, from one plain forward pass at the run's temperature."""
        logits = (
            np.array(self.model.backbone(mx.array([tokens]))[0], dtype=np.float64) / self.config.rollout.temperature
        )
        logits -= logits.max(axis=1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return np.array([logits[at - 1, tokens[at]] for at in range(start, len(tokens))])


@pytest.fixture(scope="module")
def asked(folder: Path) -> Asked:
    return Asked(folder)


def test_the_same_question_has_the_same_answer_and_another_seed_another(asked: Asked) -> None:
    mx.random.seed(1)
    before = [np.array(key) for key in mx.random.state]
    first = asked(Question(prompt="one", count=3))
    assert all(np.array_equal(key, now) for key, now in zip(before, mx.random.state, strict=True))
    mx.random.seed(2)
    assert asked(Question(prompt="one", count=3)).completions == first.completions
    assert asked(Question(prompt="one", count=3, seed=1)).completions != first.completions
    assert len({tuple(completion.tokens) for completion in first.completions}) == 3


@pytest.mark.parametrize("writer", ["policy", "reference"])
def test_log_probs_are_those_of_both_models_at_the_runs_temperature_whoever_wrote(asked: Asked, writer: Any) -> None:
    answer = asked(Question(prompt="some words", prefix=[65, 66], count=4, writer=writer, temperature=2.0))
    assert (answer.problem, answer.iteration, answer.prompt) == ("", 4, "some words")
    prompt = asked.model.tokenizer.encode("some words")
    for completion in answer.completions:
        tokens = prompt + completion.tokens
        np.testing.assert_allclose(completion.logprobs, asked.logprobs(tokens, len(prompt)), atol=1e-4)
        with asked.actor.reference():
            np.testing.assert_allclose(completion.ref_logprobs, asked.logprobs(tokens, len(prompt)), atol=1e-4)
        assert completion.logprobs != completion.ref_logprobs


def test_each_writer_writes_as_its_own_model_does(asked: Asked) -> None:
    cold = {"prompt": "some words", "temperature": 0.01, "max_new_tokens": 6}
    policy, reference = (asked(Question(**cold, writer=writer)).completions[0] for writer in ("policy", "reference"))
    prompt = asked.model.tokenizer.encode("some words")

    def greedy() -> list[int]:
        tokens: list[int] = []
        while len(tokens) < 6 and END not in tokens:
            tokens.append(int(mx.argmax(asked.model.backbone(mx.array([prompt + tokens]))[0, -1])))
        return tokens

    assert policy.tokens == greedy()
    with asked.actor.reference():
        assert reference.tokens == greedy()
    assert policy.tokens != reference.tokens


def test_a_begun_response_is_continued_and_counts_as_one(asked: Asked) -> None:
    (whole,) = asked(Question(prompt="one", temperature=0.01)).completions
    (rest,) = asked(Question(prompt="one", temperature=0.01, prefix=whole.tokens[:5], max_new_tokens=7)).completions
    assert (rest.tokens, rest.text, rest.truncated) == (whole.tokens, whole.text, whole.truncated)
    np.testing.assert_allclose(rest.logprobs, whole.logprobs, atol=1e-5)
    assert "".join(rest.token_texts) == asked.model.tokenizer.decode(rest.tokens)
    assert len(rest.token_texts) == len(rest.logprobs) == len(rest.ref_logprobs) == len(rest.tokens) == 12


def test_a_stop_text_is_seen_across_the_end_of_the_prefix(asked: Asked) -> None:
    (whole,) = asked(Question(prompt="one", temperature=0.01)).completions
    stop = asked.model.tokenizer.decode(whole.tokens[3:6])
    assert len(stop) >= 2
    settings = validate(SETTINGS | {"rollout": SETTINGS["rollout"] | {"stop": [stop]}})
    question = Question(prompt="one", temperature=0.01, prefix=whole.tokens[:5])
    (cut,) = asked(question, config=settings).completions
    assert (cut.tokens, cut.truncated) == (whole.tokens[:6], False)
    assert cut.text == asked.model.tokenizer.decode(whole.tokens[:6]).partition(stop)[0]


def test_the_reward_gets_the_whole_response_and_the_prompts_columns(asked: Asked) -> None:
    asked.scored.clear()
    answer = asked(Question(prompt="one", prefix=[65], columns={"target": 3}, count=2, max_new_tokens=4))
    for row, completion in zip(asked.scored, answer.completions, strict=True):
        expected = RewardInput("one", completion.text, completion.tokens, {"target": 3}, completion.truncated)
        assert row == expected
        assert (completion.score, completion.parts) == (
            len(completion.tokens),
            {"length": 2.0 * len(completion.tokens)},
        )
        assert completion.text.startswith("A") or completion.tokens[0] == 65


def test_rewards_of_single_tokens_count_in_the_score(asked: Asked) -> None:
    def score(batch: Sequence[RewardInput]) -> RewardResult:
        return RewardResult([0.5] * len(batch), [[0.25] * len(row.completion_ids) for row in batch], {})

    (completion,) = asked(Question(prompt="one"), score=score).completions
    assert completion.score == 0.5 + 0.25 * len(completion.tokens)


def test_a_reward_that_fails_leaves_what_was_written_without_a_score(asked: Asked) -> None:
    def score(batch: Sequence[RewardInput]) -> RewardResult:
        raise RewardError("reward source 'rewards.py:score' raised\nKeyError")

    answer = asked(Question(prompt="one", count=2), score=score)
    assert answer.problem == "reward source 'rewards.py:score' raised KeyError"
    assert [len(completion.tokens) > 0 for completion in answer.completions] == [True, True]
    assert all(math.isnan(completion.score) and completion.parts == {} for completion in answer.completions)


def test_tokens_are_taken_as_they_are_and_a_prompt_is_rendered_as_the_data(asked: Asked) -> None:
    tokens = asked.model.tokenizer.encode("one")
    by_tokens, by_text = asked(Question(prompt_tokens=tokens)), asked(Question(prompt="one"))
    assert by_tokens.completions == by_text.completions
    assert by_tokens.prompt == by_text.prompt == "one"
    refused = asked(Question(prompt=[{"role": "user", "content": "one"}]))
    assert "the tokenizer has no chat template" in refused.problem


def test_the_rewards_get_the_prompt_as_it_is_in_the_data_whatever_the_model_reads(asked: Asked) -> None:
    messages, seen = [{"role": "user", "content": "one"}], []

    def score(batch: Sequence[RewardInput]) -> RewardResult:
        seen.extend(row.prompt for row in batch)
        return RewardResult([0.0] * len(batch), None, {})

    tokens = asked.model.tokenizer.encode("<user>one</user>")
    with_messages = asked(Question(prompt=messages, prompt_tokens=tokens), score=score)
    without = asked(Question(prompt_tokens=tokens), score=score)
    assert seen == [messages, "<user>one</user>"]
    assert with_messages.prompt == without.prompt == "<user>one</user>"
    assert with_messages.completions[0].tokens == without.completions[0].tokens


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "a question must have a prompt: give it as text, messages or prompt_tokens"),
    ({"prompt_tokens": []}, "the prompt has 0 tokens, data.max_prompt_tokens = 64: give 1 to 64"),
    ({"prompt": "a" * 65}, "the prompt has 65 tokens, data.max_prompt_tokens = 64: give 1 to 64"),
    ({"prompt": ""}, "prompt 0 (counted from 0) has no tokens after rendering"),
    ({"prompt": "a", "count": 0}, "count = 0: must be 1 to 16"),
    ({"prompt": "a", "count": 17}, "count = 17: must be 1 to 16"),
    ({"prompt": "a", "temperature": 0.0}, "temperature = 0.0: must be at least 0.01"),
    ({"prompt": "a", "temperature": 11.0}, "temperature = 11.0: must be at most 10"),
    ({"prompt": "a", "temperature": math.nan}, "temperature = nan: must be"),
    ({"prompt": "a", "max_new_tokens": 0}, "max_new_tokens = 0: must be at least 1"),
    ({"prompt": "a", "max_new_tokens": 256}, "need 257 tokens, but the model's context is 256: lower max_new_tokens"),
    ({"prompt": "a", "prefix": [65] * 250}, "prompt, prefix and max_new_tokens = 12 need 263 tokens"),
    ({"prompt": "a", "prefix": [264]}, "token id 264: the model's ids are 0 to 263"),
    ({"prompt_tokens": [-1]}, "token id -1: the model's ids are 0 to 263"),
    ({"prompt": "a", "prefix": [65, END, 65]}, "the prefix ends the response already: cut it before its stop"),
    ({"prompt": "a", "seed": -1}, "seed = -1: must be 0 to 4294967295"),
    ({"prompt": "half a pair: \ud800"}, "the model could not answer: "),
    ({"prompt": [{"who": "user"}]}, "the tokenizer has no chat template"),
]


@pytest.mark.parametrize(("values", "reported"), BAD)
def test_a_bad_question_is_reported_in_one_line_and_raises_nothing(
    asked: Asked, values: dict[str, Any], reported: str
) -> None:
    answer = asked(Question(**values))
    assert reported in answer.problem
    assert "\n" not in answer.problem
    assert answer.completions == []


@pytest.mark.parametrize("reason", [Interrupted("enough", save=True), StorageError("no space")])
@pytest.mark.parametrize("step", [1, 13, 15])
def test_only_errors_of_the_progress_check_are_raised_and_the_actor_is_unchanged(
    asked: Asked, reason: Exception, step: int
) -> None:
    ids, calls = mx.array([[1, 2, 3]]), 0
    logits = asked.model.backbone(ids)

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == step:
            raise reason

    with pytest.raises(type(reason)):
        asked(Question(prompt="one", writer="reference", count=2), progress=check, config=_one_by_one(asked.config))
    assert calls == step
    assert mx.array_equal(asked.model.backbone(ids), logits)


def _one_by_one(config: Config) -> Config:
    """Return settings for exactly twelve token steps, then micro-batches of one sequence."""
    rollout = config.rollout.model_copy(update={"ignore_stop": True})
    optim = config.optim.model_copy(update={"micro_batch_tokens": 1})
    return config.model_copy(update={"rollout": rollout, "optim": optim})


def test_an_error_of_the_model_is_reported_and_not_raised(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("[malloc] Unable to allocate\n99 bytes")

    monkeypatch.setattr(answers, "generate_responses", fail)
    assert asked(Question(prompt="a")).problem == "the model could not answer: [malloc] Unable to allocate 99 bytes"


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


EVERY_FIELD = Question(
    prompt=[{"role": "user", "content": "Où ? \x1b[31m \u2028"}],
    prefix=[5, 6],
    columns={"target": 3, "nested": {"a": [1, None]}},
    writer="reference",
    count=3,
    temperature=0.5,
    max_new_tokens=9,
    seed=7,
)


@pytest.mark.parametrize("question", [EVERY_FIELD, Question(prompt="Once"), Question(prompt_tokens=[1, 2])])
def test_a_question_survives_json(question: Question) -> None:
    assert from_json(Question, to_json(question)) == question
    strange = dataclasses.replace(question, columns={"path": Fraction(1, 3), "size": math.inf})
    assert from_json(Question, to_json(strange)).columns == {"path": "1/3", "size": None}


def test_a_non_finite_number_is_null_in_json_and_nan_when_read_back() -> None:
    (completion,) = answered(Question(prompt="Once")).completions
    completion = dataclasses.replace(
        completion, score=math.nan, parts={"a": math.inf, "b": 0.5}, logprobs=[-0.25, math.nan], ref_logprobs=[-1.5, -2]
    )
    answer = Answer(writer="policy", iteration=3, prompt="Once", completions=[completion], seconds=1.5, problem="no")
    values = json.loads(to_json(answer), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert values["completions"][0]["parts"] == {"a": None, "b": 0.5}
    (back,) = from_json(Answer, json.dumps(values)).completions
    assert math.isnan(back.score)
    assert math.isnan(back.parts["a"])
    assert (back.parts["b"], back.logprobs[0], back.ref_logprobs) == (0.5, -0.25, [-1.5, -2])
    assert math.isnan(back.logprobs[1])
    assert from_json(Answer, json.dumps(values | {"completions": []})) == dataclasses.replace(answer, completions=[])


@pytest.mark.parametrize(
    ("values", "reported"),
    [
        (None, "question: Input should be an object"),
        ([1], "question: Input should be an object"),
        ({"promt": "a"}, "question.promt: Unexpected keyword argument"),
        ({"prompt": 3}, "question.prompt.str: Input should be a valid string"),
        ({"prompt": "a", "count": "3"}, "question.count: Input should be a valid integer"),
        ({"prompt": "a", "prefix": [1, "2"]}, "question.prefix.1: Input should be a valid integer"),
        ({"prompt": "a", "writer": "critic"}, "question.writer: Input should be 'policy' or 'reference'"),
        ({"prompt": [{"role": 1}]}, "question.prompt.str: Input should be a valid string"),
        ({"prompt": "a", "temperature": "hot"}, "question.temperature: Input should be a valid number"),
    ],
)
def test_anything_but_a_question_is_refused_in_one_line(values: Any, reported: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as refusal:
        from_json(Question, json.dumps(values))
    assert reported in str(refusal.value)
