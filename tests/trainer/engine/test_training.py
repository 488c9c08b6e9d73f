"""Whole runs: the same seed gives the same run and learns; what is missing, and what fails, takes one line."""

from __future__ import annotations

import gc
import json
import math
import shutil
import weakref
from pathlib import Path
from statistics import fmean
from typing import Any

import mlx.core as mx
import mlx_lm.utils
import numpy as np
import pytest
from preference_samples import labelled, reward_config
from runs_helper import Recorder, comparable, outcome, record, run_python, tiny_config, workspace
from tiny import make_tokenizer

from trainer import config
from trainer.config import Config
from trainer.config.loading import load_config_as, parse_overrides
from trainer.config.pairs import DPOConfig, RewardModelConfig
from trainer.config.schema import BackboneConfig
from trainer.engine import checkpoint_evaluation, ppo
from trainer.engine.checkpoint_evaluation import EvaluationOptions, evaluate_checkpoint
from trainer.engine.training import train
from trainer.errors import DivergedError, RewardError, TrainerError
from trainer.events import Iteration, RunEnded, RunStarted
from trainer.models.backbone import LoadedModel
from trainer.pairs import comparisons
from trainer.pairs.comparisons import reward_comparisons
from trainer.pairs.encoders import Sequenced
from trainer.ppo.learner import Learner
from trainer.ppo.losses import LossSums
from trainer.reward_model.loaded import load_reward_model
from trainer.rewards import trust_all
from trainer.runs.checkpoint_files import LAST, find_checkpoint
from trainer.runs.folder import RunFolder
from trainer.runs.journal import read_journal
from trainer.runs.samples import TOKEN_COLUMNS, read_samples


def test_the_same_seed_gives_the_same_run_to_the_bit(tmp_path: Path) -> None:
    first = record(tiny_config(tmp_path, "run.name=first"))
    second = record(tiny_config(tmp_path, "run.name=second"))
    kept = [[comparable(event) for event in recorder.events] for recorder in (first, second)]
    assert kept[0] == kept[1]
    assert outcome(tmp_path / "runs" / "first") == outcome(tmp_path / "runs" / "second")


def test_a_run_that_has_ended_leaves_no_model_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load, loaded = ppo.load_backbone, []

    def load_watched(config: BackboneConfig) -> LoadedModel:
        model = load(config)
        loaded.append(weakref.ref(model.backbone))
        return model

    monkeypatch.setattr(ppo, "load_backbone", load_watched)
    record(tiny_config(tmp_path, "ppo.iterations=1"))
    gc.collect()
    assert [reference() for reference in loaded] == [None]


def test_a_drawn_seed_is_saved_and_gives_the_run_again(tmp_path: Path) -> None:
    (started,) = record(tiny_config(tmp_path, "run.name=drawn", "run.seed=-1", "ppo.iterations=1")).of(RunStarted)
    saved = config.load_config(tmp_path / "runs" / "drawn" / "config.toml")
    assert saved.run.seed == started.seed >= 0
    record(saved.model_copy(update={"run": saved.run.model_copy(update={"name": "again"})}))
    assert outcome(tmp_path / "runs" / "again") == outcome(tmp_path / "runs" / "drawn")


NUMBERS = (
    *("score_mean", "score_std", "kl", "entropy", "policy_loss", "value_loss", "clip_fraction", "approx_kl"),
    *("ratio_max", "explained_variance", "grad_norm", "response_length", "truncated"),
    *("tokens_per_second", "memory_bytes"),
)


def test_an_iteration_reports_every_number_that_scripts_rely_on(tmp_path: Path) -> None:
    done = run_python("-m", "workbench", "--no-ui", "--display", "json", "--config", str(workspace(tmp_path)))
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    iterations = [event for event in events if event["event"] == "iteration"]
    assert [event["iteration"] for event in iterations] == [1, 2, 3]
    for event in iterations:
        assert all(math.isfinite(event[name]) for name in NUMBERS)
        assert set(event["seconds"]) == {"generate", "score", "reward", "update"}
        assert 0 < sum(event["seconds"].values()) <= event["tokens"] / event["tokens_per_second"]
    assert events[-1] == events[-1] | {"event": "end", "state": "done", "exit_code": 0, "iteration": 3}


def test_the_samples_agree_with_the_metrics_and_the_maths(tmp_path: Path) -> None:
    kl_coef = 0.5
    recorder = record(tiny_config(tmp_path, "run.name=a", f"ppo.kl_coef={kl_coef}", 'rollout.stop=["a", "b", "c"]'))
    for iteration in recorder.of(Iteration):
        path = RunFolder(tmp_path / "runs" / "a").samples_file(iteration.iteration)
        rows = read_samples(path).to_pylist()
        assert [row["row"] for row in rows] == [0, 1, 2, 3]
        assert sum(len(row["tokens"]) for row in rows) / 4 == iteration.response_length
        assert sum(row["truncated"] for row in rows) / 4 == iteration.truncated
        assert sum(row["score"] for row in rows) / 4 == pytest.approx(iteration.score_mean)
        assert sum(sum(row["kl"]) for row in rows) / 4 == pytest.approx(iteration.kl, abs=1e-5)
        for row in rows:
            assert {len(row[name]) for name in TOKEN_COLUMNS} == {len(row["tokens"])}
            difference = [a - b for a, b in zip(row["logprobs"], row["ref_logprobs"], strict=True)]
            assert row["kl"] == pytest.approx(difference, abs=1e-6)
            assert sum(row["rewards"]) == pytest.approx(row["score"] - kl_coef * sum(row["kl"]), abs=1e-5)
    assert any(iteration.kl for iteration in recorder.of(Iteration))


def lose(steps: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Give some optimiser steps, counted from 1 over the run, a loss of NaN."""
    original = Learner.gradients

    def gradients(learner: Learner, *args: Any, **how: Any) -> Any:
        found, sums, scores = original(learner, *args, **how)
        lost = LossSums(*[mx.array(math.nan)] * len(sums))
        return found, lost if learner.steps + 1 in steps else sums, scores

    monkeypatch.setattr(Learner, "gradients", gradients)


@pytest.mark.parametrize(
    ("epochs", "lost", "good"),
    [(3, {4, 5, 6}, 1), (4, {6, 7, 8}, 1), (2, {4, 5, 6}, 2)],
    ids=["a whole iteration", "after a good step of the same iteration", "across iterations"],
)
def test_three_skipped_steps_in_a_row_end_the_run_with_the_last_good_state(
    epochs: int, lost: set[int], good: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, recorder = [f"ppo.epochs={epochs}", "checkpoint.every=0"], Recorder()
    lose(lost, monkeypatch)
    with pytest.raises(DivergedError, match=r"3 times in a row .*lower optim.policy_lr \(0.001\)") as failure:
        train(tiny_config(tmp_path, "run.name=lost", *settings), sinks=[recorder])
    assert failure.value.exit_code == 4
    ended = recorder.events[-1]
    assert isinstance(ended, RunEnded)
    assert (ended.state, ended.exit_code, ended.checkpoint) == ("failed", 4, f"checkpoints/step-{good:06d}")
    record(tiny_config(tmp_path, "run.name=good", f"ppo.iterations={good}", *settings))
    assert outcome(tmp_path / "runs/lost")["checkpoint"] == outcome(tmp_path / "runs/good")["checkpoint"]
    monkeypatch.undo()
    assert record(tiny_config(tmp_path, *settings), resume=tmp_path / "runs/lost").of(RunEnded)[0].exit_code == 0


BAD_REWARDS = """
calls = 0

def raises(completions, **_):
    global calls
    calls += 1
    return [1 / (calls < 2) for _ in completions]

def nan(completions, **_):
    global calls
    calls += 1
    return [0.0, 1.0, float("nan") if calls == 2 else 0.5, 0.25]
"""


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("raises", "ZeroDivisionError: division by zero (bad.py:7) on sample 0 ('"),
        ("nan", "') has score nan: must be finite"),
    ],
)
def test_a_reward_that_fails_names_the_place_and_leaves_a_run_to_resume(
    function: str, message: str, tmp_path: Path
) -> None:
    workspace(tmp_path)
    (tmp_path / "bad.py").write_text(BAD_REWARDS)
    source = f'reward.sources=["{tmp_path}/bad.py:{function}"]'
    with pytest.raises(RewardError) as failure:
        record(tiny_config(tmp_path, "run.name=a", source, "checkpoint.every=0", "eval.every=0"))
    text = str(failure.value)
    assert message in text
    assert "\n" not in text
    assert f"sample {2 if function == 'nan' else 0} ('" in text
    ended = read_journal(tmp_path / "runs/a/events.jsonl").events[-1]
    assert isinstance(ended, RunEnded)
    assert (ended.exit_code, ended.reason, ended.checkpoint) == (3, text, "checkpoints/step-000001")


@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_a_run_scores_what_it_samples_from_and_a_response_that_met_no_stop_pays_the_penalty(
    temperature: float, tmp_path: Path
) -> None:
    stops = ["a", "b", "c", "d", "e", "f"]
    settings = ("rollout.max_new_tokens=16", f"rollout.stop={stops}", "reward.missing_stop_penalty=7.0")
    settings = ("run.name=a", "optim.policy_lr=0.02", f"rollout.temperature={temperature}", *settings)
    first, *later = record(tiny_config(tmp_path, *settings)).of(Iteration)
    assert first.kl == 0
    assert all(abs(iteration.kl) > 1e-3 for iteration in later), "the adapter that sampled is no longer fresh"
    files = sorted(RunFolder(tmp_path / "runs/a").samples.iterdir())
    rows = [row for file in files for row in read_samples(file).to_pylist()]
    met = [any(stop in make_tokenizer().decode(row["tokens"]) for stop in stops) for row in rows]
    assert {False, True} == set(met)
    for row, stopped in zip(rows, met, strict=True):
        np.testing.assert_allclose(row["logprobs"], row["sampler_logprobs"], atol=1e-4)
        assert not any(stop in row["completion"] for stop in stops)
        assert row["truncated"] is not stopped
        (part,) = row["parts"]
        assert row["score"] == pytest.approx(part["score"] - 7 * (not stopped), abs=1e-5)


def test_a_saved_reward_model_has_mean_0_and_deviation_1_on_the_completions_it_was_normalised_by(
    tmp_path: Path,
) -> None:
    config, pairs = reward_config(tmp_path, "run.name=a", "data.eval_fraction=0"), labelled(40)
    train(config, preferences=pairs)
    loaded = load_reward_model(tmp_path / "runs" / "a")
    groups = reward_comparisons(pairs, loaded.base, config).train
    sequences = [list(sequence) for group in groups for sequence in group.sequences]
    rewards = np.array(loaded.score([Sequenced(one, len(one), is_cut=False) for one in sequences]))
    assert (rewards.mean(), rewards.std()) == (pytest.approx(0, abs=1e-4), pytest.approx(1, abs=1e-4))
    assert abs(loaded.model.scale.std - 1) > 0.01  # so that there was something to do


# What is missing is reported before the model is loaded, which may take minutes


@pytest.fixture
def loads_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("the model was loaded first")

    for module in (ppo, comparisons, checkpoint_evaluation):
        monkeypatch.setattr(module, "load_backbone", load)
    monkeypatch.setattr(mlx_lm.utils, "load_model", load)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("early")
    tiny_config(folder)
    with (folder / "rewards.py").open("a") as file:
        file.write("\ndef wants(completions, answer): pass\n")
    record(tiny_config(folder, "run.name=a", "ppo.iterations=1", "eval.every=0"))
    return folder


MISSING = {
    "prompts": ("data.prompts=gone.jsonl", "data.prompts = 'gone.jsonl': no such file"),
    "a file of rewards": ("reward.sources=['gone.py:score']", "no file 'gone.py'"),
    "a function": ("reward.sources=['{folder}/rewards.py:scores']", "no function 'scores'.*did you mean 'score'"),
    "a column": ("reward.sources=['{folder}/rewards.py:wants']", "needs 'answer', which is not a column of the data"),
    "a module": ("reward.sources=['no_such_module:score']", "no module 'no_such_module'"),
    "a reward model": ("reward.sources=[{{kind='model', path='gone'}}]", "reward source 'gone': no such folder"),
    "a critic": ("model.value_init=gone", "model.value_init = 'gone'"),
    "a policy": ("model.policy_init=gone", "model.policy_init = 'gone'"),
}


@pytest.mark.parametrize(("assignment", "message"), MISSING.values(), ids=MISSING)
@pytest.mark.usefixtures("loads_no_model")
def test_a_run_of_ppo_says_what_is_missing_before_it_loads_the_model(
    folder: Path, assignment: str, message: str
) -> None:
    adapter = ["model.value_model=adapter"] if "value_init" in assignment else []
    config = tiny_config(folder, "run.name=b", assignment.format(folder=folder), *adapter)
    with pytest.raises(TrainerError, match=message):
        train(config)
    assert not (folder / "runs/b").exists()


@pytest.mark.parametrize(
    ("schema", "assignment", "message"),
    [
        (DPOConfig, "data.preferences=gone.db", "there is no preference store 'gone.db'"),
        (DPOConfig, "reward.sources=['gone.py:score']", "no file 'gone.py'"),
        (DPOConfig, "", r"preferences\.jsonl:601: no column 'chosen'"),
        (RewardModelConfig, "data.preferences=gone.jsonl", "'gone.jsonl': no such file"),
        (RewardModelConfig, "", r"preferences\.jsonl:601: no column 'chosen'"),
    ],
)
@pytest.mark.usefixtures("loads_no_model")
def test_a_run_on_preferences_says_what_is_missing_before_it_loads_the_model(
    folder: Path, schema: Any, assignment: str, message: str
) -> None:
    (folder / "empty.toml").write_text(f"[run]\ndir = '{folder}/runs'\n[model]\npath = '{folder}/model'\n")
    preferences = folder / "preferences.jsonl"
    rows = [f'{{"prompt": "a{n}", "chosen": "b", "rejected": "c"}}\n' for n in range(600)]
    preferences.write_text("".join([*rows, '{"prompt": "a"}\n']))
    settings = [f"data.preferences={preferences}"] * ("data." not in assignment) + [assignment] * bool(assignment)
    with pytest.raises(TrainerError, match=message):
        train(load_config_as(schema, folder / "empty.toml", parse_overrides(settings, schema)))


@pytest.mark.usefixtures("loads_no_model")
def test_a_missing_adapter_is_reported_before_the_model_is_loaded(folder: Path) -> None:
    from trainer.models.backbone import load_backbone, load_tokenizer

    config = tiny_config(folder, "model.adapter=gone")
    for load in (load_backbone, load_tokenizer):
        with pytest.raises(TrainerError, match=r"model\.adapter = 'gone' has no adapter_config\.json"):
            load(config.model)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"file": "gone.jsonl"}, "data.prompts = 'gone.jsonl': no such file"),
        ({"reward": "gone.py:score"}, "no file 'gone.py'"),
        ({"reward": "{folder}/rewards.py:scores"}, "no function 'scores'"),
        ({}, r"moved\.jsonl': no such file"),
    ],
)
@pytest.mark.usefixtures("loads_no_model")
def test_an_evaluation_says_what_is_missing_before_it_loads_the_model(
    folder: Path, tmp_path: Path, wanted: dict[str, str], message: str
) -> None:
    run = RunFolder(shutil.copytree(folder / "runs/a", tmp_path / "a"))
    if not wanted:  # the run's own prompts are gone
        run.config.write_text(run.config.read_text().replace("prompts.jsonl", "moved.jsonl"))
    options = EvaluationOptions(**{name: value.format(folder=folder) for name, value in wanted.items()})  # type: ignore[arg-type]
    with pytest.raises(TrainerError, match=message):
        evaluate_checkpoint(run, find_checkpoint(run, LAST)[0], options, trust=trust_all)


def test_a_file_of_rewards_is_run_once(folder: Path) -> None:
    runs = folder / "ran"
    code = f"with open({str(runs)!r}, 'a') as file:\n    file.write('x')\n"
    (folder / "counted.py").write_text(f"{code}def score(completions, **_):\n    return [1.0 for _ in completions]\n")
    record(tiny_config(folder, "run.name=c", "ppo.iterations=1", f"reward.sources=['{folder}/counted.py:score']"))
    assert runs.read_text() == "x"


# What is learnt. The course depends on the processor, which rounds products its own way, so sooner or later other
# tokens are drawn. The levels are far from what other seeds and libraries gave, and from what learning nothing gives.

DIGITS = """\
def digits(completion_ids, **_):
    return [sum(48 <= token < 58 for token in ids) / len(ids) for ids in completion_ids]

def low(completion_ids, **_):
    return [sum(token < 128 for token in ids) / len(ids) for ids in completion_ids]
"""
BARE = ("eval.every=0", "checkpoint.every=0", "run.save_samples=false")
WIDE = (
    'model.lora_targets=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]',
    "model.lora_rank=16",
    "rollout.batch_size=64",
    "rollout.max_new_tokens=6",
    "rollout.ignore_stop=true",
    "ppo.epochs=2",
    "ppo.kl_coef=0.001",
    "optim.policy_lr=0.007",
    "optim.value_lr=0.01",
    "optim.warmup_steps=8",
    'optim.schedule="linear"',
)
GROUPS_OF_FOUR = ("rollout.samples_per_prompt=4",)
ESTIMATORS = {
    "reinforce": ("ppo.estimator=reinforce",),
    "rloo": ("ppo.estimator=rloo", *GROUPS_OF_FOUR),
    "remax": ("ppo.estimator=remax",),
    "grpo": ("ppo.estimator=grpo", *GROUPS_OF_FOUR, "ppo.whiten_advantages=false"),
    "dr-grpo": (
        "ppo.estimator=grpo",
        *GROUPS_OF_FOUR,
        "ppo.whiten_advantages=false",
        "ppo.group_std=false",
        "ppo.loss_aggregation=constant",
        "ppo.kl_in=loss",
        "ppo.kl_estimator=k3",
    ),
    "gspo": ("ppo.estimator=grpo", *GROUPS_OF_FOUR, "ppo.ratio=sequence", "ppo.clip=0.01", "ppo.minibatches=2"),
    "cispo": ("ppo.estimator=grpo", *GROUPS_OF_FOUR, "ppo.policy_loss=cispo", "ppo.clip_high=1.0"),
    "ppo with every option": (
        "ppo.clip_high=0.28",
        "ppo.dual_clip=3.0",
        "ppo.importance_cap=2.0",
        "ppo.loss_aggregation=sequence",
        "ppo.critic_warmup=1",
        "ppo.kl_controller=adaptive",
        "optim.ema_decay=0.5",
    ),
}


def task(folder: Path, reward: str, *overrides: str) -> Config:
    tiny_config(folder)
    (folder / "rewards.py").write_text(DIGITS)
    return tiny_config(folder, *BARE, *overrides, f'reward.sources=["{folder}/rewards.py:{reward}"]')


def scores(config: Config) -> list[float]:
    return [iteration.score_mean for iteration in record(config).of(Iteration)]


@pytest.mark.parametrize("seed", range(5))
def test_a_model_learns_to_write_digits_and_never_falls_back_below_where_it_began(seed: int, tmp_path: Path) -> None:
    run = record(task(tmp_path, "digits", *WIDE, f"run.seed={seed}", "ppo.iterations=24")).of(Iteration)
    course = [iteration.score_mean for iteration in run]
    assert course[0] < 0.1
    assert fmean(course[-10:]) >= 0.5
    assert min(course[5:]) >= course[0]
    # Tokens are drawn from the distribution that is scored: over the run, their surprise is its entropy but for chance.
    gap = sum(iteration.surprise - iteration.entropy for iteration in run)
    assert abs(gap) < 4 * math.hypot(*(iteration.surprise_error for iteration in run))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_estimator_raises_the_score(estimator: str, tmp_path: Path) -> None:
    course = scores(task(tmp_path, "low", *WIDE, "ppo.iterations=16", *ESTIMATORS[estimator]))
    assert fmean(course[-4:]) > fmean(course[:2]) + 0.1
