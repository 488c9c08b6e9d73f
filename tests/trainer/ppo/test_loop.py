"""What one iteration passes on to the next step, and to the next iteration."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs_helper import record, tiny_config

from trainer.events import Iteration
from trainer.runs.folder import RunFolder
from trainer.runs.samples import read_samples


def test_the_greedy_response_is_normalised_as_the_samples_are_from_the_first_iteration_on(tmp_path: Path) -> None:
    """Each sample is the greedy response here, so it is as good as its baseline."""
    settings = ['ppo.estimator="remax"', 'reward.normalize="running"', "rollout.top_k=1", "ppo.kl_coef=0"]
    record(tiny_config(tmp_path, "run.name=a", "ppo.iterations=2", *settings))
    for number in (1, 2):
        rows = read_samples(RunFolder(tmp_path / "runs" / "a").samples_file(number)).to_pylist()
        assert len({row["score"] for row in rows}) > 1
        for row in rows:
            assert row["advantages"] == pytest.approx([0.0] * len(row["tokens"]), abs=1e-6)


def test_the_adaptive_coefficient_waits_for_the_policy_to_learn(tmp_path: Path) -> None:
    """Until then, the KL is 0 whatever the coefficient is."""
    settings = ["ppo.kl_controller=adaptive", "ppo.kl_coef=0.1", "ppo.critic_warmup=2", "ppo.iterations=4"]
    iterations = record(tiny_config(tmp_path, *settings)).of(Iteration)
    assert [each.kl_coef for each in iterations[:3]] == [0.1, 0.1, 0.1]
    assert iterations[3].kl_coef < 0.1
