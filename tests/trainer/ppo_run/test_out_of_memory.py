"""A run that does not fit the memory: parts are lowered before the first iteration or when an allocation fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import mlx.core as mx
import pytest
from reward_model_runs import train_tiny
from runs_helper import Killed, Recorder, comparable, outcome, record, tiny_config, within

from trainer.config import Config, load_config
from trainer.control.control import Control
from trainer.errors import OutOfMemoryError
from trainer.events import (
    Alert,
    Evaluation,
    Event,
    Iteration,
    Phase,
    PhaseProgress,
    RunEnded,
    RunStarted,
    SettingChanged,
    StateChanged,
)
from trainer.fitting import phases
from trainer.ppo_run import fit_check
from trainer.ppo_run.training import train
from trainer.rewards import RewardInput, SourceScores
from trainer.rewards.model_reward import ModelReward
from trainer.rewards.python_reward import PythonReward, scored_together
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

    monkeypatch.setattr(phases.mx, "get_peak_memory", peak)
    recorder = healed(tmp_path, lambda event: None, "eval.every=0")
    (change,) = recorder.of(SettingChanged)
    assert (change.iteration, change.key, change.value) == (2, "rollout.slots", 2)
    assert "1125899.91 GB are more than" in recorder.of(Alert)[0].message


def test_a_peak_above_the_limit_in_the_last_iteration_requests_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phases.mx, "get_peak_memory", lambda: 2**50)
    recorder = healed(tmp_path, lambda event: None, "eval.every=0", "ppo.iterations=1")
    assert not recorder.of(SettingChanged)
    assert not recorder.of(Alert)


# The check before the first iteration


PEAKS: dict[Phase, int] = {"generate": 100, "score": 200, "update": 900}


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace the trial by one whose peak of the update grows with the micro-batch; return the sizes that it tried."""
    sizes: list[int] = []

    def peaks(ppo: object, prompts: object) -> dict[Phase, int]:
        tokens = ppo.config.optim.micro_batch_tokens  # type: ignore[attr-defined]
        sizes.append(tokens)
        return PEAKS | {"update": 10**7 * tokens}

    monkeypatch.setattr(fit_check, "phase_peaks", peaks)
    monkeypatch.setattr(fit_check, "clear_footprint", lambda *config, gpu: None)
    return sizes


def test_what_does_not_fit_is_lowered_before_the_first_iteration(tmp_path: Path, tried: list[int]) -> None:
    settings = ("optim.micro_batch_tokens=80", "model.memory_limit=0.3")
    recorder = record(tiny_config(tmp_path, "run.name=a", *settings))
    assert len(tried) == 3
    assert tried == sorted(tried, reverse=True)
    assert tried[-1] <= 30
    (started,) = recorder.of(RunStarted)
    assert any("optim.micro_batch_tokens lowered from 80 to" in warning for warning in started.warnings)
    assert "GB are more than 0.30 GB in the phase 'update'" in "".join(started.warnings)
    saved = load_config(tmp_path / "runs" / "a" / "config.toml")
    assert saved.optim.micro_batch_tokens == tried[-1]
    record(saved.model_copy(update={"ppo": saved.ppo.model_copy(update={"iterations": 4})}), resume=tmp_path / "runs/a")
    assert len(tried) == 4  # a resumed run is tried too, and fits


def test_a_run_that_cannot_fit_is_refused_and_leaves_no_folder(tmp_path: Path, tried: list[int]) -> None:
    with pytest.raises(OutOfMemoryError, match=r"optim\.grad_checkpoint = true"):
        record(tiny_config(tmp_path, "run.name=a", "model.memory_limit=0.01"))
    assert not (tmp_path / "runs" / "a").exists()


def test_the_trial_finds_the_peaks_that_an_iteration_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[Phase, int] = {}

    def peaks(ppo: object, prompts: object) -> dict[Phase, int]:
        found.update(real(ppo, prompts))  # type: ignore[arg-type]
        return {"update": 0}

    real = fit_check.phase_peaks
    monkeypatch.setattr(fit_check, "phase_peaks", peaks)
    monkeypatch.setattr(fit_check, "clear_footprint", lambda *config, gpu: None)
    settings = ("rollout.max_new_tokens=200", "rollout.ignore_stop=true", "eval.every=0", "ppo.iterations=1")
    recorder = record(tiny_config(tmp_path, *settings))
    (iteration,) = recorder.of(Iteration)
    for phase in ("score", "update"):
        assert found[phase] == pytest.approx(iteration.memory[phase], rel=0.1), phase  # type: ignore[index]
    assert found["generate"] == pytest.approx(iteration.memory["generate"], rel=0.35)


def test_the_trial_trains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = record(tiny_config(tmp_path, "run.name=a"))
    monkeypatch.setattr(fit_check, "clear_footprint", lambda *config, gpu: None)
    record(tiny_config(tmp_path, "run.name=b"))
    assert plain.of(Iteration)
    assert outcome(tmp_path / "runs" / "a") == outcome(tmp_path / "runs" / "b")


def tries(event: Event, phase: str) -> bool:
    """Return whether `event` reports that the trial begins with a phase."""
    return isinstance(event, PhaseProgress) and (event.iteration, event.phase) == (0, phase)


def test_the_trial_reports_what_it_tries_and_the_journal_does_not_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_check, "clear_footprint", lambda *config, gpu: None)
    recorder = record(tiny_config(tmp_path, "run.name=a", "ppo.iterations=1", "eval.every=0"))
    first = recorder.events[: recorder.events.index(recorder.of(RunStarted)[0])]
    assert first[:2] == [StateChanged(state="loading"), StateChanged(state="checking")]
    assert [(event.phase, event.done, event.total) for event in first[2:]] == [  # type: ignore[attr-defined]
        ("generate", 0, 3),
        ("score", 1, 3),
        ("update", 2, 3),
    ]
    journal = read_journal(tmp_path / "runs" / "a" / "events.jsonl").events
    assert isinstance(journal[0], RunStarted)
    assert StateChanged(state="checking") not in journal


@pytest.mark.parametrize("phase", ["generate", "score"])
def test_a_run_stopped_during_the_trial_tries_no_more_and_keeps_what_was_requested(
    phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing handles a request before the run has a folder, so a setting must wait for that and not be lost."""
    monkeypatch.setattr(fit_check, "clear_footprint", lambda *config, gpu: None)
    control = Control()

    def stop(event: Event) -> None:
        if tries(event, phase):
            control.set("ppo.kl_coef", 0.25)
            control.stop()

    recorder = Recorder(stop)
    ended = train(tiny_config(tmp_path, "run.name=a"), sinks=[recorder], control=control)
    assert recorder.of(PhaseProgress)[-1].phase == phase
    assert (ended.state, ended.iteration, ended.checkpoint) == ("stopped", 0, "checkpoints/step-000000")
    assert load_config(tmp_path / "runs" / "a" / "config.toml").ppo.kl_coef == 0.25


def test_a_stop_within_a_part_of_the_trial_ends_that_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scoring is two passes; the second, of the reference, must not run."""
    monkeypatch.setattr(fit_check, "clear_footprint", lambda *config, gpu: None)
    control, passed = Control(), list[str]()
    monkeypatch.setattr("trainer.ppo.steps.add_kl_to_sa_pairs", lambda *batch, **how: passed.append("reference"))
    recorder = Recorder(lambda event: control.abort() if tries(event, "score") else None)
    ended = train(tiny_config(tmp_path, "run.name=a"), sinks=[recorder], control=control)
    assert (ended.state, ended.checkpoint, passed) == ("stopped", "", [])


def with_reward_model(folder: Path, *settings: str) -> Config:
    """Configure a tiny run whose reward is a Python function and a reward model that reads 180 tokens."""
    tiny_config(folder)
    run = train_tiny(folder, "rm", "data.max_tokens=180")
    sources = f'[{{kind = "model", path = "{run}"}}, "{folder}/rewards.py:score"]'
    return tiny_config(folder, f"reward.sources={sources}", *settings)


def test_the_trial_of_the_reward_models_finds_the_peak_that_an_iteration_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[Phase, int] = {}
    real = fit_check.phase_peaks
    monkeypatch.setattr(fit_check, "phase_peaks", lambda *run: found.update(real(*run)) or found)
    monkeypatch.setattr(fit_check, "clear_footprint", lambda *config, gpu: None)
    settings = ("rollout.max_new_tokens=200", "rollout.ignore_stop=true", "eval.every=0", "ppo.iterations=1")
    recorder = record(with_reward_model(tmp_path, *settings))
    parts = [event.phase for event in recorder.of(PhaseProgress) if event.iteration == 0]
    assert parts == ["generate", "score", "reward", "update"]
    (iteration,) = recorder.of(Iteration)
    assert found["reward"] == pytest.approx(iteration.memory["reward"], rel=0.1)


def test_the_trial_asks_no_python_function_and_changes_no_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_reward_model(tmp_path, 'reward.normalize="running"')
    record(config.model_copy(update={"run": config.run.model_copy(update={"name": "plain"})}))
    asked: list[bool] = []  # whether the run had started
    recorder = Recorder()
    real = scored_together

    def ask(rewards: Sequence[PythonReward], batch: Sequence[RewardInput]) -> list[SourceScores]:
        asked.append(bool(recorder.of(RunStarted)))
        return real(rewards, batch)

    monkeypatch.setattr("trainer.rewards.weighted_sum.scored_together", ask)
    monkeypatch.setattr(fit_check, "clear_footprint", lambda *config, gpu: None)
    train(config.model_copy(update={"run": config.run.model_copy(update={"name": "tried"})}), sinks=[recorder])
    assert asked
    assert all(asked)
    assert outcome(tmp_path / "runs" / "plain") == outcome(tmp_path / "runs" / "tried")


def test_reward_models_that_do_not_fit_read_smaller_micro_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def largest(reward: ModelReward, batch: object) -> None:
        tried.append(reward.micro_batch_tokens)
        if len(tried) == 1:
            raise RuntimeError(FAILURES[0])

    monkeypatch.setattr(ModelReward, "try_largest", largest)
    monkeypatch.setattr(fit_check, "clear_footprint", lambda *config, gpu: None)
    recorder = record(with_reward_model(tmp_path, "optim.micro_batch_tokens=80", "ppo.iterations=1"))
    assert tried == [80, 40]
    (started,) = recorder.of(RunStarted)
    assert any("to 40: an allocation failed in the phase 'reward'" in warning for warning in started.warnings)


def test_a_clear_estimate_is_not_tried_and_a_hopeless_one_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(ppo: object, prompts: object) -> dict[Phase, int]:
        raise AssertionError("tried")

    monkeypatch.setattr(fit_check, "phase_peaks", never)
    record(tiny_config(tmp_path, "run.name=a", "ppo.iterations=1"))
    with pytest.raises(OutOfMemoryError):
        record(tiny_config(tmp_path, "run.name=b", "ppo.iterations=1", "model.memory_limit=0.00001"))


def test_a_failed_allocation_in_the_trial_counts_as_too_large(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failing = iter([True])

    def update(ppo: object, longest: object) -> None:
        if next(failing, False):
            raise RuntimeError(FAILURES[2])

    monkeypatch.setattr("trainer.ppo.trial._differentiate", update)
    monkeypatch.setattr(fit_check, "clear_footprint", lambda *config, gpu: None)
    recorder = record(tiny_config(tmp_path, "optim.micro_batch_tokens=80"))
    (started,) = recorder.of(RunStarted)
    assert any("to 40: an allocation failed in the phase 'update'" in warning for warning in started.warnings)


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
