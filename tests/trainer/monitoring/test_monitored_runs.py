"""Real runs of a tiny model: a broken one raises its alarm in the run's own journal, a good one raises none."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from apart import ROOT
from runs_helper import record, tiny_config

from trainer.events import Alarm, RunEnded
from trainer.monitoring import ALARM_RULES
from trainer.ppo.learner import Learner
from trainer.ppo.losses import LossSums
from trainer.runs.journal import read_journal
from trainer.runs.listing import list_runs


def alarms(folder: Path, *settings: str) -> list[tuple[int, str]]:
    """Return the alarms in the journal of a run, by iteration and code."""
    record(tiny_config(folder, "run.name=a", "eval.every=0", "run.save_samples=false", *settings))
    events = read_journal(folder / "runs/a/events.jsonl").events
    return [(event.iteration, event.code) for event in events if isinstance(event, Alarm)]


def test_a_learning_rate_of_0_is_seen_after_five_iterations(tmp_path: Path) -> None:
    found = alarms(tmp_path, "optim.policy_lr=0.0", "ppo.iterations=6")
    assert found == [(5, "not_training")]


def test_a_constant_reward_is_seen_after_three_iterations(tmp_path: Path) -> None:
    tiny_config(tmp_path)
    source = f'reward.sources=["{tmp_path}/rewards.py:constant"]'
    assert alarms(tmp_path, source, "ppo.kl_coef=0.0", "ppo.iterations=4") == [(3, "no_signal")]
    [listed] = list_runs(tmp_path / "runs")
    assert (listed.state, [*listed.alarms]) == ("done", ["no_signal"])
    end = read_journal(listed.folder.events).events[-1]
    assert isinstance(end, RunEnded)
    assert end.alarms == listed.alarms


def test_a_step_that_is_nan_is_seen_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Learner.gradients

    def gradients(learner: Learner, *args: Any, **how: Any) -> Any:
        found = original(learner, *args, **how)
        lost = found._replace(sums=LossSums(*[mx.array(math.nan)] * len(found.sums)))
        return lost if learner.steps == 2 else found

    monkeypatch.setattr(Learner, "gradients", gradients)
    assert alarms(tmp_path) == [(2, "step_nan")]


@pytest.fixture
def benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return benchmarks/alarms.py with its workspace in `tmp_path`."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.import_module("alarms")
    module.make_workspace(tmp_path)
    return module


def test_the_benchmark_has_a_failure_for_each_rule_and_ten_healthy_runs(benchmark: Any) -> None:
    assert {case.alarm for case in benchmark.FAILURES} == set(ALARM_RULES)
    assert len({case.name for case in benchmark.HEALTHY}) == 10
    assert all(case.alarm == "" for case in benchmark.HEALTHY)
    for case in [*benchmark.FAILURES, *benchmark.HEALTHY]:
        benchmark.configuration(Path("workspace"), case.settings)


@pytest.mark.parametrize(
    ("name", "iterations"),
    [
        ("draws sharper than the distribution", 12),
        ("a controller that is too slow", 10),
        ("scored at another temperature than sampled", 14),
    ],
)
def test_a_seeded_failure_raises_its_alarm(name: str, iterations: int, benchmark: Any, tmp_path: Path) -> None:
    case = next(case for case in benchmark.FAILURES if case.name == name)
    short = case._replace(settings={**case.settings, "ppo.iterations": iterations, "checkpoint.every": 0})
    reported = benchmark.run(short, tmp_path)
    assert case.alarm in [alarm.code for alarm in reported.alarms]
    assert len(reported.iterations) == iterations


@pytest.mark.parametrize("seed", [0, 1])
def test_a_run_that_learns_raises_nothing(tmp_path: Path, seed: int) -> None:
    sizes = ("ppo.iterations=12", "rollout.batch_size=16", "optim.policy_lr=0.002", f"run.seed={seed}")
    assert alarms(tmp_path, *sizes) == []
