"""Whole runs: the same seed gives the same run, and failures take one line and leave a run to resume."""

from __future__ import annotations

import gc
import json
import math
import weakref
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from runs_helper import Recorder, comparable, outcome, record, run_python, tiny_config, workspace

from trainer import config
from trainer.config.schema import BackboneConfig
from trainer.engine import ppo
from trainer.engine.training import train
from trainer.errors import DivergedError, RewardError
from trainer.events import Iteration, RunEnded, RunStarted
from trainer.models.backbone import LoadedModel
from trainer.ppo.learner import Learner
from trainer.ppo.losses import LossSums
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
        found = original(learner, *args, **how)
        lost = found._replace(sums=LossSums(*[mx.array(math.nan)] * len(found.sums)))
        return lost if learner.steps + 1 in steps else found

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
