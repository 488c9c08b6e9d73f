"""Runs of reward models and DPO that do not fit: smaller micro-batches before the first step or at a failure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dpo_helper import dpo_config
from preference_samples import labelled, reward_config
from runs_helper import Recorder, comparable, tiny_config, within

from trainer.engine.training import train
from trainer.events import (
    Alert,
    DPOStep,
    Event,
    RewardModelStep,
    SettingChanged,
)
from trainer.files import read_toml

Train = Callable[..., Recorder]
KINDS = {"reward model": RewardModelStep, "dpo": DPOStep}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def trained(kind: str, tmp_path: Path) -> Train:
    """Return a function that trains a run of this kind on the same comparisons, for as many steps as these make."""

    def run(name: str, watch: Callable[[Event], None] = lambda event: None, *settings: str, **how: Any) -> Recorder:
        recorder = Recorder(watch)
        settings = (f"run.name={name}", "train.epochs=2", *settings)
        if kind == "dpo":
            train(dpo_config(tmp_path, *settings), preferences=labelled(24), sinks=[recorder], **how)
        else:
            tiny_config(tmp_path)
            config = reward_config(tmp_path, *settings)
            train(config, preferences=labelled(24), sinks=[recorder], **how)
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
    kind: str, trained: Train, tmp_path: Path
) -> None:
    healed, plain = trained("a", fails("update", 2)), trained("b")
    steps = [comparable(event) for event in healed.of(KINDS[kind])]
    for mine, other in zip(steps, [comparable(event) for event in plain.of(KINDS[kind])], strict=True):
        assert mine["loss"] == pytest.approx(other["loss"], abs=1e-4)
    (change,) = healed.of(SettingChanged)
    assert (change.iteration, change.key) == (2, "optim.micro_batch_tokens")
    assert change.value < change.old
    saved = read_toml(tmp_path / "runs" / "a" / "config.toml")
    assert saved["optim"]["micro_batch_tokens"] == change.value
    assert [alert.code for alert in healed.of(Alert)].count("out_of_memory") == 1
