"""Without a critic the first step scores the batch in the pass that it trains with: nothing else differs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs_helper import Recorder, comparable, record, tiny_config

from trainer.events import Alert, Iteration, PhaseProgress
from trainer.ppo.loop import PPO
from trainer.runs.folder import RunFolder
from trainer.runs.samples import read_samples

GROUPS = ("rollout.samples_per_prompt=2", "ppo.iterations=2", "eval.every=0", "run.alternatives=3")


def samples_of(folder: Path, iteration: int) -> list[dict[str, Any]]:
    (run,) = (folder / "runs").iterdir()
    rows: list[dict[str, Any]] = read_samples(RunFolder(run).samples_file(iteration)).to_pylist()
    return rows


def phases_of(recorder: Recorder, iteration: int) -> list[str]:
    found = [event.phase for event in recorder.of(PhaseProgress) if event.iteration == iteration]
    return list(dict.fromkeys(found))


def close(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple, np.ndarray)):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return bool(np.isclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True))
    return bool(one == other)


@pytest.mark.parametrize(
    "settings",
    [
        ("ppo.estimator=grpo", "ppo.kl_in=loss", "ppo.kl_estimator=k3"),
        ("ppo.estimator=rloo", "ppo.kl_coef=0", "ppo.entropy_coef=0.01", "rollout.temperature=0.7"),
        ("ppo.estimator=remax", "ppo.kl_in=loss", "ppo.kl_estimator=k2", "optim.micro_batch_tokens=32"),
        ("ppo.estimator=reinforce", "ppo.kl_in=loss", "ppo.kl_estimator=k3", "ppo.importance_cap=2", "ppo.epochs=1"),
        ("ppo.estimator=grpo", "ppo.kl_in=loss", "ppo.kl_estimator=k3", "optim.grad_checkpoint=true"),
        ("ppo.estimator=grpo", "ppo.kl_in=loss", "ppo.kl_estimator=k3", "run.alternatives=0"),
    ],
)
def test_scores_of_the_first_step_are_those_of_a_pass_of_their_own(
    settings: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for folder, joined in ((tmp_path / "joined", True), (tmp_path / "apart", False)):
        folder.mkdir()
        if not joined:
            monkeypatch.setattr(PPO, "scores_while_learning", False)
        recorder = record(tiny_config(folder, *GROUPS, *settings))
        assert ("score" in phases_of(recorder, 1)) != joined
        metrics = [comparable(event) for event in recorder.of(Iteration)]
        found.append((metrics, samples_of(folder, 1), samples_of(folder, 2)))
    (metrics, *samples), (expected_metrics, *expected_samples) = found
    assert len(metrics) == 2
    assert close(metrics, expected_metrics)
    assert close(samples, expected_samples)
    assert all(row["ratios"][0][0] == 1.0 for row in samples[0])  # not about 1: pi_old is the same number


@pytest.mark.parametrize(
    "settings",
    [
        ("ppo.estimator=gae", "ppo.kl_in=loss", "ppo.kl_estimator=k3"),  # the advantages need the critic
        ("ppo.estimator=rloo",),  # the rewards need the KL
        ("ppo.estimator=rloo", "ppo.kl_coef=0", "ppo.minibatches=2"),  # the second step's policy did not write it
    ],
)
def test_the_batch_is_scored_before_where_something_needs_it(settings: tuple[str, ...], tmp_path: Path) -> None:
    recorder = record(tiny_config(tmp_path, *GROUPS, *settings))
    assert phases_of(recorder, 1) == ["generate", "score", "reward", "update"]


def test_a_batch_that_no_step_trains_on_is_scored_after_all(tmp_path: Path) -> None:
    settings = (f"reward.sources=['{tmp_path}/rewards.py:constant']", "ppo.estimator=grpo", "ppo.kl_in=loss")
    tiny_config(tmp_path)
    recorder = record(tiny_config(tmp_path, *GROUPS, *settings, "ppo.kl_estimator=k3", "ppo.kl_coef=0"))
    assert {alert.code for alert in recorder.of(Alert)} >= {"no_signal"}
    assert phases_of(recorder, 1) == ["generate", "reward", "update", "score"]
    assert all(math.isfinite(event.entropy) and event.kl == 0.0 for event in recorder.of(Iteration))
    assert all(len(row["top_tokens"][0]) == 3 for row in samples_of(tmp_path, 1))
