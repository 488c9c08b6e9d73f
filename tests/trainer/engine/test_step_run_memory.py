"""Runs of reward models and DPO that do not fit: smaller micro-batches before the first step or at a failure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dpo_helper import dpo_config
from preference_samples import labelled, reward_config
from runs_helper import Recorder, comparable, tiny_config, within

from trainer.config import SCHEMAS
from trainer.config.loading import load_config_as
from trainer.engine.training import train_dpo, train_reward_model
from trainer.errors import OutOfMemoryError
from trainer.events import (
    Alert,
    DPOStep,
    Event,
    RewardModelStep,
    RunEnded,
    RunStarted,
    SettingChanged,
)
from trainer.files import read_toml
from trainer.memory.estimate import changed, footprint_of
from trainer.memory.shape import shape_of

Train = Callable[..., Recorder]
KINDS = {"reward model": RewardModelStep, "dpo": DPOStep}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def train(kind: str, tmp_path: Path) -> Train:
    """Return a function that trains a run of this kind on the same comparisons, for as many steps as these make."""

    def run(name: str, watch: Callable[[Event], None] = lambda event: None, *settings: str, **how: Any) -> Recorder:
        recorder = Recorder(watch)
        settings = (f"run.name={name}", "train.epochs=2", *settings)
        if kind == "dpo":
            train_dpo(dpo_config(tmp_path, *settings), preferences=labelled(24), sinks=[recorder], **how)
        else:
            tiny_config(tmp_path)
            config = reward_config(tmp_path, *settings)
            train_reward_model(config, preferences=labelled(24), sinks=[recorder], **how)
        return recorder

    return run


def fails(phase: str, number: int, *, times: int = 1) -> Callable[[Event], None]:
    left = times

    def watch(event: Event) -> None:
        nonlocal left
        if within(event, phase, number) and left:
            left -= 1
            raise RuntimeError("[malloc] Unable to allocate 4096 bytes.")

    return watch


def test_a_failed_allocation_halves_the_micro_batch_and_repeats_the_step(
    kind: str, train: Train, tmp_path: Path
) -> None:
    healed, plain = train("a", fails("update", 2)), train("b")
    steps = [comparable(event) for event in healed.of(KINDS[kind])]
    for mine, other in zip(steps, [comparable(event) for event in plain.of(KINDS[kind])], strict=True):
        assert mine["loss"] == pytest.approx(other["loss"], abs=1e-4)
    (change,) = healed.of(SettingChanged)
    assert (change.iteration, change.key) == (2, "optim.micro_batch_tokens")
    assert change.value < change.old
    saved = read_toml(tmp_path / "runs" / "a" / "config.toml")
    assert saved["optim"]["micro_batch_tokens"] == change.value
    assert [alert.code for alert in healed.of(Alert)].count("out_of_memory") == 1


def test_an_evaluation_that_fails_is_repeated(kind: str, train: Train) -> None:
    healed = train("a", fails("evaluate", 0))
    (change,) = healed.of(SettingChanged)
    assert change.key == "optim.micro_batch_tokens"
    (ended,) = healed.of(RunEnded)
    assert ended.state == "done"


def test_one_comparison_that_does_not_fit_ends_the_run_with_advice(kind: str, train: Train) -> None:
    seen, fail = Recorder(), fails("update", 2, times=100)

    def watch(event: Event) -> None:
        seen.emit(event)
        fail(event)

    with pytest.raises(OutOfMemoryError, match=r"'update' does not fit .*optim\.grad_checkpoint = true"):
        train("a", watch)
    (ended,) = seen.of(RunEnded)
    assert (ended.state, ended.exit_code, ended.iteration) == ("failed", 3, 1)


def test_what_does_not_fit_is_lowered_before_the_first_step(kind: str, train: Train, tmp_path: Path) -> None:
    plain = train("a", lambda event: None, "eval.every=0")
    config = load_config_as(SCHEMAS[kind.replace(" ", "-")], tmp_path / "runs" / "a" / "config.toml")
    shape, _ = shape_of(config.model.path)
    assert shape is not None
    peak = footprint_of(config, shape, 20, gpu=False).peak
    smaller = footprint_of(changed(config, "optim.micro_batch_tokens", 80), shape, 20, gpu=False).peak
    assert smaller < peak
    limit = f"model.memory_limit={(peak + smaller) / 2e9}"
    (started,) = train("b", lambda event: None, "eval.every=0", limit).of(RunStarted)
    assert any("optim.micro_batch_tokens lowered from" in warning for warning in started.warnings)
    assert not any("lowered" in warning for warning in plain.of(RunStarted)[0].warnings)
