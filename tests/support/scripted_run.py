"""A trainer that follows a script instead of training, for the tests of what shows and steers a run.

As a program it is `ppo-workbench` with that trainer: `SCRIPT=wait python tests/support/scripted_run.py --no-ui`.
"""

from __future__ import annotations

import os
import sys
import threading
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from config_files import save_config

from trainer.config import Config
from trainer.engine.control import Control
from trainer.errors import DivergedError, Interrupted
from trainer.events import (
    Alarm,
    CheckpointSaved,
    Evaluation,
    Event,
    Fix,
    Iteration,
    PhaseProgress,
    RolledBack,
    RunEnded,
    RunStarted,
    SamplePreview,
    SamplesWritten,
    SettingChanged,
    StateChanged,
)
from trainer.questions import Answer, Question, WrittenResponse
from trainer.rewards.code import Trust, trust_all
from trainer.runs.checkpoint_files import write_state
from trainer.runs.folder import RunFolder
from trainer.runs.journal import Journal
from trainer.runs.sinks import Sink


def started(**changes: Any) -> RunStarted:
    values: dict[str, Any] = {
        "name": "quickstart-0001",
        "folder": "runs/quickstart-0001",
        "model": "starter",
        "device": "Device(cpu, 0)",
        "dtype": "float32",
        "parameters": 135_000_000,
        "trainable": 460_800,
        "prompts": 320,
        "eval_prompts": 16,
        "iterations": 12,
        "seed": 0,
        "versions": {"mlx": "0.32.4"},
    }
    return RunStarted(**values | changes)


def iteration(number: int, **changes: Any) -> Iteration:
    """Return an iteration whose metrics all differ, so that a value in the wrong column shows."""
    values: dict[str, Any] = {
        "iteration": number,
        "score_mean": 0.1 * number,
        "score_std": 0.25,
        "score_max": 0.9,
        "score_min": -0.8,
        "reward_mean": 0.05,
        "kl": 0.5 * number,
        "entropy": 1.432,
        "policy_loss": -0.0561,
        "value_loss": 0.0222,
        "clip_fraction": 0.063,
        "approx_kl": 0.004,
        "ratio_mean": 1.001,
        "ratio_max": 1.7,
        "explained_variance": 0.41,
        "grad_norm": 0.77,
        "value_mean": 0.3,
        "return_mean": 0.31,
        "response_length": 29.3,
        "truncated": 0.125,
        "sampler_mismatch": 1e-6,
        "steps": 2,
        "skipped_steps": 0,
        "kl_coef": 0.02,
        "policy_lr": 3e-4,
        "value_lr": 1e-3,
        "tokens_per_second": 142.0,
        "seconds": {"generate": 6.0, "score": 5.0, "update": 11.0},
        "memory_bytes": 1_640_000_000,
        "tokens": 235 * number,
    }
    return Iteration(**values | changes)


def evaluation(number: int, **changes: Any) -> Evaluation:
    """Return an evaluation of held-out prompts whose numbers all differ."""
    values: dict[str, Any] = {
        "iteration": number,
        "prompts": 16,
        "score_mean": 0.512,
        "score_std": 0.2,
        "kl": 3.25,
        "response_length": 28.5,
        "truncated": 0.1,
        "seconds": 4.0,
    }
    return Evaluation(**values | changes)


FIXES = [
    Fix(label="raise kl_coef to 0.1", action="set", key="ppo.kl_coef", value=0.1),
    Fix(label="roll back to the best checkpoint", action="rollback"),
    Fix(label="pause the run", action="pause"),
]


def alarm(number: int, **changes: Any) -> Alarm:
    """Return a KL alarm with each kind of fix."""
    values: dict[str, Any] = {
        "iteration": number,
        "level": "warning",
        "code": "kl_high",
        "message": "the KL is 24.1 nats a sequence, more than 3 times its target of 8",
        "evidence": {"kl": 24.1, "times_target": 3.0125},
        "advice": "Raise kl_coef. If that does not hold it, lower clip or the learning rate.",
        "fixes": FIXES,
    }
    return Alarm(**values | changes)


def samples(number: int, *texts: tuple[str, str]) -> SamplesWritten:
    """Return prompts with their completions."""
    previews = [
        SamplePreview(prompt=prompt, completion=completion, score=0.81, kl=7.9, truncated=False)
        for prompt, completion in texts
    ]
    return SamplesWritten(iteration=number, path="", rows=len(previews), previews=previews)


def ended(state: str = "done", iteration: int = 12, **changes: Any) -> RunEnded:
    codes = {"done": 0, "stopped": 130, "failed": 4}
    values = {
        "state": state,
        "exit_code": codes[state],
        "reason": "",
        "iteration": iteration,
        "seconds": 264.0,
    }
    return RunEnded(**values | changes)  # type: ignore[arg-type]


def answered(question: Question, *, iteration: int = 0) -> Answer:
    """Return completions with made-up numbers, as many as `question` wants."""
    tokens = [*question.prefix, 7, 8]
    completion = WrittenResponse(
        text=" there was joy.",
        tokens=tokens,
        token_texts=["?"] * len(question.prefix) + [" there was", " joy."],
        logprobs=[-1.0] * len(tokens),
        ref_logprobs=[-2.0] * len(tokens),
        score=0.81,
        parts={"lexicon": 0.81},
        truncated=False,
    )
    return Answer(
        writer=question.writer,
        iteration=iteration,
        prompt=str(question.prompt),
        completions=[completion] * question.count,
        seconds=0.5,
    )


ERROR = "ppo-workbench: error: "


class Script:
    """Stand-in for `trainer.engine.training.train`; `received` is what it was called with.

    play(emit, control) emits events and returns the end of the run, or raises what the trainer would raise.
    """

    def __init__(self, play: Callable[[Callable[..., None], Control], RunEnded]) -> None:
        self.play = play
        self.received: dict[str, Any] = {}
        self.thread: threading.Thread | None = None
        self.accepts_data = False  # whether the call accepts that the prompts have changed

    def __call__(
        self,
        config: Config,
        *,
        resume: Path | None,
        preset: str,
        sinks: Sequence[Sink],
        control: Control,
        trust: Trust = trust_all,
        accept_data: bool = False,
    ) -> RunEnded:
        self.received = {"config": config, "resume": resume, "preset": preset}
        self.accepts_data = accept_data
        self.thread = threading.current_thread()

        def emit(event: Event) -> None:
            for sink in sinks:
                sink.emit(event)

        try:
            return self.play(emit, control)
        finally:
            for sink in sinks:
                sink.close()


def done(emit: Callable[..., None], control: Control) -> RunEnded:
    """Play twelve iterations to the end."""
    emit(StateChanged(state="loading"))
    emit(started())
    emit(StateChanged(state="training"))
    for number in range(1, 13):
        emit(PhaseProgress(iteration=number, phase="update", done=1, total=2))
        emit(samples(number, ("Once upon a time", " there was joy.")))
        emit(iteration(number))
    emit(CheckpointSaved(iteration=12, path="checkpoints/step-000012", seconds=0.2))
    emit(end := ended(checkpoint="checkpoints/step-000012"))
    return end


def wait(emit: Callable[..., None], control: Control) -> RunEnded:
    """Play one iteration, then steps that never end, until told to stop."""
    emit(started())
    emit(iteration(1))
    return _until_interrupted(emit, control, lambda: threading.Event().wait(0.01))


class SteeredRun:
    """Requests as the script `steered` handles them, each reported by the events of a real run."""

    def __init__(self, emit: Callable[..., None]) -> None:
        self.emit = emit
        self.number = 1
        self.settings: dict[str, Any] = {"ppo.kl_coef": 0.02}
        self.wanted: dict[str, Any] = {}

    def handle(self, request: str, *values: Any) -> None:
        done = self.number - 1
        match request, *values:
            case ("paused",):
                self.emit(StateChanged(state="paused"))
            case ("resumed",):
                self.emit(StateChanged(state="training"))
            case ("checkpoint",):
                self.emit(CheckpointSaved(iteration=done, path=f"checkpoints/step-{done:06d}", seconds=0.2))
            case ("rollback", to, reason):
                self.emit(RolledBack(iteration=done, to=to or 0, reason=reason))
            case ("set", key, value):
                self.wanted[key] = value

    def answer(self, question: Question, check: Callable[[], None]) -> Answer:
        check()
        return answered(question, iteration=self.number - 1)

    def apply(self) -> None:
        for key, value in self.wanted.items():
            self.emit(SettingChanged(iteration=self.number, key=key, old=self.settings.get(key), value=value))
        self.settings |= self.wanted
        self.wanted = {}


def steered(emit: Callable[..., None], control: Control) -> RunEnded:
    """Play iterations of four steps until told to stop; handle pause, resume, step, checkpoint and set."""
    run = SteeredRun(emit)
    control.attach(run)
    emit(started(iterations=1000))
    emit(StateChanged(state="training"))

    def iterate() -> None:
        run.apply()
        for step in range(1, 5):
            control.check()
            emit(PhaseProgress(iteration=run.number, phase="update", done=step, total=4))
            threading.Event().wait(0.005)
        emit(samples(run.number, ("Once upon a time", " there was joy.")))
        emit(iteration(run.number, kl_coef=run.settings["ppo.kl_coef"]))
        run.number += 1
        control.check(step_done=True)

    return _until_interrupted(emit, control, iterate)


def flood(emit: Callable[..., None], control: Control) -> RunEnded:
    """Play endless iterations until told to stop."""
    emit(started())
    return _until_interrupted(emit, control, lambda: emit(iteration(2)))


def stuck(emit: Callable[..., None], control: Control) -> RunEnded:
    """Hang for ever as in native code, deaf to requests to stop."""
    emit(started())
    emit(iteration(1))
    threading.Event().wait()
    raise AssertionError("nothing sets that event")


def loading(emit: Callable[..., None], control: Control) -> RunEnded:
    """Hang for ever before the run has begun, as a chat template without an end does."""
    emit(StateChanged(state="loading"))
    threading.Event().wait()
    raise AssertionError("nothing sets that event")


def patient(emit: Callable[..., None], control: Control) -> RunEnded:
    """Play one iteration, then wait for a file `go`; leave a file `ended`."""
    emit(started())
    emit(iteration(1))
    while not Path("go").exists():
        control.check()
        threading.Event().wait(0.01)
    emit(end := ended())
    Path("ended").touch()
    return end


def recorded(emit: Callable[..., None], control: Control) -> RunEnded:
    """Play `wait` with a journal in the working folder; a file `gone` says that screen and terminal are gone."""
    journal, nowhere = Journal(Path("events.jsonl")), Path(os.devnull).stat().st_rdev

    def both(event: Any) -> None:
        journal.emit(event)
        emit(event)

    def step() -> None:
        if os.fstat(0).st_rdev == nowhere:
            Path("gone").touch()
        threading.Event().wait(0.01)

    both(started())
    both(iteration(1))
    return _until_interrupted(both, control, step)


def diverged(emit: Callable[..., None], control: Control) -> RunEnded:
    emit(started())
    emit(ended("failed", 3, reason="loss was NaN"))
    raise DivergedError("loss was NaN 3 times in a row: lower optim.policy_lr and resume")


def bug(emit: Callable[..., None], control: Control) -> RunEnded:
    emit(started(folder=os.environ.get("RUN_FOLDER", "")))
    raise ZeroDivisionError("a bug of ours\nwith a second line")


def unhurt(emit: Callable[..., None], control: Control) -> RunEnded:
    """Raise before there is a run."""
    raise ZeroDivisionError("a bug of ours")


def _until_interrupted(emit: Callable[..., None], control: Control, step: Callable[[], object]) -> RunEnded:
    try:
        while True:
            control.check()
            step()
    except Interrupted as interruption:
        if interruption.save:
            emit(CheckpointSaved(iteration=1, path="checkpoints/step-000001", seconds=0.2))
        emit(end := ended("stopped", 1, reason=interruption.reason, checkpoint="checkpoints/step-000001"))
        return end


def training_module(script: Script) -> types.ModuleType:
    """Return a replacement for `trainer.engine.training`, which imports MLX."""
    module = types.ModuleType("trainer.engine.training")
    module.train = script  # type: ignore[attr-defined]
    module.release_thread = lambda: None  # type: ignore[attr-defined]
    return module


def write_events(folder: Path, *events: Event) -> None:
    """Append to the journal of the run in `folder`."""
    journal = Journal(folder / "events.jsonl")
    for event in events:
        journal.emit(event)
    journal.close()


def make_run(name: str, *, run_kind: str = "ppo", **changes: Any) -> Path:
    """Make a run folder in runs/, as far as these tests read it."""
    folder = Path("runs", name)
    folder.mkdir(parents=True)
    save_config(Config(), folder / "config.toml")
    first = started(name=name, folder=str(folder), run_kind=run_kind)
    write_events(folder, first, iteration(1), iteration(2), ended("stopped", 2, **changes))
    return folder


def complete_run(name: str, iterations: int = 12) -> Path:
    """Make a run that has done all its iterations, with its last checkpoint."""
    folder = make_run(name)
    save_config(Config.model_validate({"ppo": {"iterations": iterations}}), folder / "config.toml")
    write_events(folder, iteration(iterations), ended("done", iterations))
    checkpoint = RunFolder(folder).checkpoint(iterations)
    checkpoint.mkdir(parents=True)
    write_state(checkpoint, {"version": 1})
    return folder


def lines(capsys: pytest.CaptureFixture[str]) -> tuple[list[str], list[str]]:
    """Return lines of stdout and of stderr."""
    captured = capsys.readouterr()
    return captured.out.splitlines(), captured.err.splitlines()


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    """Return exit code and error of a command that prints nothing else than one line on stderr."""
    from workbench.cli.main import main

    code = main(argv)
    out, err = lines(capsys)
    assert (out, len(err)) == ([], 1)
    assert err[0].startswith(ERROR)
    return code, err[0].removeprefix(ERROR)


if __name__ == "__main__":
    from workbench.cli.main import main

    sys.modules["trainer.engine.training"] = training_module(Script(globals()[os.environ.get("SCRIPT", "done")]))
    code = main()
    if os.environ.get("LIST_MODULES"):
        print("\n".join(sys.modules), file=sys.stderr)
    sys.exit(code)
