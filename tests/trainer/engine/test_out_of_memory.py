"""A run that does not fit the memory: parts are lowered before the first iteration or when an allocation fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from dpo_helper import dpo_config
from preference_samples import labelled, reward_config
from reward_model_runs import train_tiny
from runs_helper import Killed, Recorder, comparable, outcome, record, tiny_config, within

from trainer.config import Config, load_config
from trainer.engine.control import Control
from trainer.engine.training import train
from trainer.errors import OutOfMemoryError
from trainer.events import (
    Alert,
    DPOStep,
    Evaluation,
    Event,
    Iteration,
    RewardModelStep,
    RunEnded,
    RunStarted,
    SettingChanged,
)
from trainer.files import read_toml
from trainer.fitting import optimisation
from trainer.memory.estimate import changed, footprint_of
from trainer.memory.shape import shape_of
from trainer.rewards import RewardInput, SourceScores
from trainer.rewards.model_reward import ModelReward
from trainer.runs.folder import RunFolder
from trainer.runs.journal import read_journal

FAILURES = (
    "[malloc] Unable to allocate 4096 bytes.",
    "[metal::malloc] Attempting to allocate 9 bytes which is greater than the maximum allowed buffer size of 8 bytes.",
    "cudaMallocAsync(&data, size, stream) failed: out of memory",
)


def fails(phase: str, iteration: int, message: str = FAILURES[0], *, times: int = 1) -> Callable[[Event], None]:
    """Return a watcher that raises what MLX raises for a failed allocation, in the middle of a phase."""
    left = times

    def watch(event: Event) -> None:
        nonlocal left
        if within(event, phase, iteration) and left:
            left -= 1
            raise RuntimeError(message)

    return watch


def healed(folder: Path, watch: Callable[[Event], None], *settings: str) -> Recorder:
    """Run a tiny run, called `a`, in which `watch` sees every event."""
    recorder = Recorder(watch)
    train(tiny_config(folder, "run.name=a", *settings), sinks=[recorder])
    return recorder


def set_live(folder: Path, key: str, value: int, *settings: str) -> Recorder:
    """Run the same run, which gets the setting live from iteration 2 on."""
    control = Control()
    recorder = Recorder(lambda event: control.set(key, value) if within(event, "score", 1) else None)
    train(tiny_config(folder, "run.name=b", *settings), sinks=[recorder], control=control)
    return recorder


@pytest.mark.parametrize("message", FAILURES)
@pytest.mark.parametrize("phase", ["score", "update"])
def test_a_failed_allocation_halves_the_micro_batch_and_repeats_the_iteration(
    phase: str, message: str, tmp_path: Path
) -> None:
    """The rest is bit for bit what it would have been with that setting from the start of the iteration on."""
    recorder = healed(tmp_path, fails(phase, 2, message), "optim.micro_batch_tokens=64")
    (change,) = recorder.of(SettingChanged)
    assert (change.iteration, change.key, change.old) == (2, "optim.micro_batch_tokens", 64)
    assert change.value == 32
    (alert,) = [alert for alert in recorder.of(Alert) if alert.code == "out_of_memory"]
    assert alert.iteration == 2
    assert alert.message == (
        f"optim.micro_batch_tokens lowered from 64 to 32: an allocation failed in the phase '{phase}'"
    )
    assert load_config(tmp_path / "runs" / "a" / "config.toml").optim.micro_batch_tokens == 32
    assert [event.iteration for event in recorder.of(Iteration)] == [1, 2, 3]
    set_live(tmp_path, "optim.micro_batch_tokens", 32, "optim.micro_batch_tokens=64")
    kinds = (Iteration, Evaluation, SettingChanged)
    assert outcome(tmp_path / "runs" / "a", kinds) == outcome(tmp_path / "runs" / "b", kinds)


def test_steps_taken_before_the_failure_are_taken_back(tmp_path: Path) -> None:
    """The allocation fails in the last micro-batch of the update, after three of four steps."""
    failed: list[Event] = []

    def watch(event: Event) -> None:
        if within(event, "update", 2) and event.done == event.total and not failed:  # type: ignore[attr-defined]
            failed.append(event)
            raise RuntimeError(FAILURES[0])

    settings = ("optim.micro_batch_tokens=64", "ppo.minibatches=2")
    healed(tmp_path, watch, *settings)
    assert failed
    set_live(tmp_path, "optim.micro_batch_tokens", 32, *settings)
    kinds = (Iteration, Evaluation, SettingChanged)
    assert outcome(tmp_path / "runs" / "a", kinds) == outcome(tmp_path / "runs" / "b", kinds)


@pytest.mark.parametrize(("configure", "step"), [(reward_config, RewardModelStep), (dpo_config, DPOStep)])
def test_a_step_on_comparisons_is_repeated_in_smaller_parts(configure: Any, step: type[Event], tmp_path: Path) -> None:
    tiny_config(tmp_path)
    left = []
    for name, watch in (("a", fails("update", 2)), ("b", lambda event: None)):
        left.append(Recorder(watch))  # type: ignore[arg-type]
        config = configure(tmp_path, f"run.name={name}", "train.epochs=2")
        train(config, preferences=labelled(24), sinks=[left[-1]])
    healed_, plain = left
    for mine, other in zip(healed_.of(step), plain.of(step), strict=True):
        assert mine.loss == pytest.approx(other.loss, abs=1e-4)
    (change,) = healed_.of(SettingChanged)
    assert (change.iteration, change.key) == (2, "optim.micro_batch_tokens")
    saved = read_toml(tmp_path / "runs" / "a" / "config.toml")
    assert saved["optim"]["micro_batch_tokens"] == change.value < change.old
    assert [alert.code for alert in healed_.of(Alert)].count("out_of_memory") == 1


def test_generation_continues_with_half_the_responses_at_a_time(tmp_path: Path) -> None:
    recorder = healed(tmp_path, fails("generate", 2))
    (change,) = recorder.of(SettingChanged)
    assert (change.key, change.old, change.value) == ("rollout.slots", 32, 2)  # half of the four that were written
    plain = record(tiny_config(tmp_path, "run.name=b"))
    for mine, other in zip(recorder.of(Iteration), plain.of(Iteration), strict=True):
        assert mine.score_mean == pytest.approx(other.score_mean, abs=1e-4)  # a response does not depend on others


def test_an_evaluation_that_fails_is_repeated_at_once_and_its_change_saved(tmp_path: Path) -> None:
    recorder = healed(tmp_path, fails("evaluate", 2), "ppo.iterations=4")
    plain = record(tiny_config(tmp_path, "run.name=b", "ppo.iterations=4"))
    assert [event.iteration for event in recorder.of(Evaluation)] == [0, 2, 4]
    for mine, other in zip(recorder.of(Evaluation), plain.of(Evaluation), strict=True):
        assert mine.score_mean == pytest.approx(other.score_mean, abs=1e-4)
    changes = {change.key: (change.iteration, change.value) for change in recorder.of(SettingChanged)}
    assert changes["rollout.slots"] == (3, 2)


def test_one_sequence_that_does_not_fit_ends_the_run_with_a_checkpoint_and_advice(tmp_path: Path) -> None:
    recorder = Recorder(fails("update", 2, times=100))
    config = tiny_config(tmp_path, "run.name=a", "optim.micro_batch_tokens=64")
    with pytest.raises(OutOfMemoryError, match=r"'update' does not fit .* GB with a single sequence at a time: set "):
        train(config, sinks=[recorder])
    (ended,) = recorder.of(RunEnded)
    assert (ended.state, ended.exit_code, ended.iteration) == ("failed", 3, 1)
    assert ended.checkpoint == "checkpoints/step-000001"
    values = [change.value for change in recorder.of(SettingChanged)]
    assert values == sorted(values, reverse=True)
    assert values


def test_a_healed_run_that_is_killed_resumes_bit_for_bit(tmp_path: Path) -> None:
    whole = healed(tmp_path, fails("score", 2), "optim.micro_batch_tokens=64")
    fail = fails("score", 2)

    def watch(event: Event) -> None:
        fail(event)
        if within(event, "update", 3):
            raise Killed

    with pytest.raises(Killed):
        train(tiny_config(tmp_path, "run.name=c", "optim.micro_batch_tokens=64"), sinks=[Recorder(watch)])
    folder = tmp_path / "runs" / "c"
    record(load_config(folder / "config.toml"), resume=folder)
    expected = [comparable(event) for event in whole.of(Iteration)]
    found = read_journal(RunFolder(folder).events).events
    assert [comparable(event) for event in found if isinstance(event, Iteration)] == expected


def test_another_error_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="shapes"):
        healed(tmp_path, fails("update", 2, "[matmul] shapes do not match"))


def test_a_peak_above_the_limit_makes_the_next_iterations_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device may give more than the limit, and a CPU always does until the system ends the process."""
    above = iter([True])

    def peak() -> int:
        return 2**50 if next(above, False) else 1000

    monkeypatch.setattr(optimisation.mx, "get_peak_memory", peak)
    recorder = healed(tmp_path, lambda event: None, "eval.every=0")
    (change,) = recorder.of(SettingChanged)
    assert (change.iteration, change.key, change.value) == (2, "rollout.slots", 2)
    assert "1125899.91 GB are more than" in recorder.of(Alert)[0].message


# The check before the first iteration


def estimated(config: Config, *, longest: int = 12) -> float:
    """Return the gigabytes that a tiny run with prompts of up to `longest` tokens needs by its estimate."""
    shape, _ = shape_of(config.model.path)
    assert shape is not None
    return footprint_of(config, shape, longest, gpu=False).peak / 1e9


def test_what_does_not_fit_is_lowered_before_the_first_iteration(tmp_path: Path) -> None:
    settings = ("optim.micro_batch_tokens=80", "eval.every=0")
    whole = tiny_config(tmp_path, "run.name=a", *settings)
    small = changed(whole, "optim.micro_batch_tokens", 40)
    limit = (estimated(whole) + estimated(small)) / 2
    recorder = record(tiny_config(tmp_path, "run.name=a", *settings, f"model.memory_limit={limit}"))
    (started,) = recorder.of(RunStarted)
    assert any("optim.micro_batch_tokens lowered from 80 to 40" in warning for warning in started.warnings)
    assert "in the phase 'update'" in "".join(started.warnings)
    assert load_config(tmp_path / "runs" / "a" / "config.toml").optim.micro_batch_tokens <= 40


def test_a_run_that_cannot_fit_is_refused_and_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(OutOfMemoryError, match=r"optim\.grad_checkpoint = true"):
        record(tiny_config(tmp_path, "run.name=a", "model.memory_limit=0.00001"))
    assert not (tmp_path / "runs" / "a").exists()


def test_single_sequences_just_above_the_limit_are_tried(tmp_path: Path) -> None:
    settings = ("run.name=a", "optim.micro_batch_tokens=1", "rollout.slots=1", "eval.every=0", "ppo.iterations=1")
    limit = 0.95 * estimated(tiny_config(tmp_path, *settings))
    assert record(tiny_config(tmp_path, *settings, f"model.memory_limit={limit}")).of(Iteration)


def with_reward_model(folder: Path, *settings: str) -> Config:
    """Configure a tiny run whose reward is a Python function and a reward model that reads 180 tokens."""
    tiny_config(folder)
    run = train_tiny(folder, "rm", "data.max_tokens=180")
    sources = f'[{{kind = "model", path = "{run}"}}, "{folder}/rewards.py:score"]'
    return tiny_config(folder, f"reward.sources={sources}", *settings)


def test_reward_models_that_do_not_fit_read_smaller_micro_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    real = ModelReward.__call__

    def scored(reward: ModelReward, batch: Sequence[RewardInput]) -> SourceScores:
        sizes.append(reward.micro_batch_tokens)
        if len(sizes) == 1:
            raise RuntimeError(FAILURES[0])
        return real(reward, batch)

    monkeypatch.setattr(ModelReward, "__call__", scored)
    settings = ("optim.micro_batch_tokens=80", "ppo.iterations=1", "eval.every=0")
    recorder = record(with_reward_model(tmp_path, *settings))
    assert sizes == [80, 40]
    assert "to 40: an allocation failed in the phase 'reward'" in recorder.of(Alert)[0].message


def test_the_limit_is_that_of_the_setting_and_at_most_what_the_device_holds() -> None:
    from trainer.config.schema import ModelConfig
    from trainer.fitting.memory_limit import set_memory_limit

    device = set_memory_limit(ModelConfig())
    try:
        assert device > 10**8
        assert set_memory_limit(ModelConfig(memory_limit=0.05)) == 50_000_000
        assert mx.get_memory_limit() == 50_000_000
        assert set_memory_limit(ModelConfig(memory_limit=1e6)) == device
    finally:
        set_memory_limit(ModelConfig())
