"""Small real runs on a tiny model: their configuration, what they emit and leave on disk, and ways to kill them.

As a program it is `ppo-workbench`, killed at a place of an iteration: `runs_helper.py score 2 --no-ui --config a.toml`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import trainer  # noqa: F401  loads the BLAS, before anything imports mlx
from trainer import policy_checkpoint as checkpoint
from trainer.config import Config, load_config, parse_overrides
from trainer.engine.control import Control
from trainer.engine.run import Run
from trainer.engine.training import train
from trainer.events import Alert, Evaluation, Event, Iteration, PhaseProgress, SamplesWritten
from trainer.rewards.code import code_of
from trainer.runs import checkpoint_files
from trainer.runs.folder import RunFolder
from trainer.runs.journal import read_journal
from trainer.runs.samples import read_samples
from workbench.system.code_trust import trusted_code

PROMPTS = ["one", "two of them", "three", "four by four", "five", "six or seven", "eight", "nine to go", "and ten"]
SETTINGS = """\
model.path = "{folder}/model"
data.prompts = "{folder}/prompts.jsonl"
data.eval_fraction = 0.3
rollout.batch_size = 4
rollout.max_new_tokens = 8
reward.sources = ["{folder}/rewards.py:score"]
ppo.iterations = 3
ppo.epochs = 2
optim.policy_lr = 0.001
eval.every = 2
run.dir = "{folder}/runs"
"""
REWARDS = """\
def score(completion_ids, **_):
    return [sum(token < 128 for token in ids) / len(ids) for ids in completion_ids]

def each_token(completion_ids, **_):
    return [[float(token < 128) for token in ids] for ids in completion_ids]

def constant(completions, **_):
    return [1.0 for _ in completions]
"""
OF_THE_MOMENT = ("seconds", "tokens_per_second", "memory_bytes", "memory", "time", "name", "folder", "warnings")
"""Fields of events in which two runs of one seed may differ."""


def workspace(folder: Path) -> Path:
    """Make a model, prompts, rewards and `tiny.toml` in `folder`; returns the path of the last."""
    from tiny import make_checkpoint

    make_checkpoint(folder / "model")
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    (folder / "rewards.py").write_text(REWARDS)
    trusted_code().remember(code_of(f"{folder}/rewards.py:score"))  # a user's own
    (folder / "tiny.toml").write_text(SETTINGS.format(folder=folder))
    return folder / "tiny.toml"


def tiny_config(folder: Path, *overrides: str) -> Config:
    """Configure three iterations of four sequences of eight tokens, in a workspace made in `folder` if missing."""
    toml = folder / "tiny.toml"
    return load_config(toml if toml.exists() else workspace(folder), parse_overrides(list(overrides)))


class Recorder:
    """Sink that keeps every event and calls `watch` with it."""

    def __init__(self, watch: Callable[[Event], None] = lambda event: None) -> None:
        self.events: list[Event] = []
        self.watch = watch

    def emit(self, event: Event) -> None:
        self.events.append(event)
        self.watch(event)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def of(self, *kinds: type[Event]) -> list[Any]:
        """Return the events of some kinds."""
        return [event for event in self.events if isinstance(event, kinds)]


def record(
    config: Config, *, resume: Path | None = None, control: Control | None = None, accept_data: bool = False
) -> Recorder:
    """Run `config` to its end."""
    recorder = Recorder()
    train(config, resume=resume, sinks=[recorder], control=control, accept_data=accept_data)
    return recorder


def comparable(event: Event) -> dict[str, Any]:
    """Return an event as plain values, without the fields that differ from run to run."""
    return {name: value for name, value in event.as_dict().items() if name not in OF_THE_MOMENT}


def outcome(
    run: Path, kinds: tuple[type[Event], ...] = (Iteration, Evaluation, SamplesWritten, Alert)
) -> dict[str, Any]:
    """Return what the run in `run` left, bit by bit: its numbers, its samples, every file of its newest checkpoint."""
    folder = RunFolder(run)
    events = read_journal(folder.events).events
    newest = newest_checkpoint(folder)
    assert newest is not None
    return {
        "events": [comparable(event) for event in events if isinstance(event, kinds)],
        "samples": {path.name: read_samples(path).to_pylist() for path in sorted(folder.samples.glob("*"))},
        "checkpoint": {str(p.relative_to(newest)): p.read_bytes() for p in newest.rglob("*") if p.is_file()},
    }


def flip(path: Path, bit: int) -> None:
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def flips(folder: Path, *, a_file: int) -> Iterator[tuple[str, int]]:
    """Return every file of a checkpoint with some of its bits: the first, the last and random others."""
    draw = random.Random(0)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        bits = path.stat().st_size * 8
        for bit in {0, bits - 1, *(draw.randrange(bits) for _ in range(a_file))}:
            yield str(path.relative_to(folder)), bit


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in its own process, in the test's folder."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def run_killed(place: str, iteration: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `ppo-workbench` in its own process, which is killed at a place of an iteration; see `plant`."""
    return run_python(__file__, place, str(iteration), "--no-ui", "--display", "json", *arguments)


class Killed(BaseException):
    """Exception that ends a run in this process like a kill: no handler of ours may catch it."""


def within(event: Event, phase: str, iteration: int) -> bool:
    """Return whether `event` comes from the middle of a phase (the reward phase has none: from its start)."""
    if not isinstance(event, PhaseProgress) or (event.phase, event.iteration) != (phase, iteration):
        return False
    return event.done > 0 or phase == "reward"


def die(*_: Any) -> None:
    """End the run in this process like a kill."""
    raise Killed


def once(phase: str, iteration: int, action: Callable[[], object]) -> Callable[[Event], None]:
    """Return a watcher that calls `action` once, in the middle of a phase."""
    done = False

    def watch(event: Event) -> None:
        nonlocal done
        if not done and within(event, phase, iteration):
            done = True
            action()

    return watch


def acting(phase: str, iteration: int, action: Callable[[], object]) -> Recorder:
    """Return a recorder that calls `action` once, in the middle of a phase."""
    return Recorder(once(phase, iteration, action))


def killed_at(phase: str, number: int) -> Callable[[Event], None]:
    """Return a watcher that ends the run like a kill in the middle of a phase."""
    return once(phase, number, die)


def same_training(run: Path, other: Path) -> bool:
    """Return whether two runs left the same samples and the same newest checkpoint, whatever they reported."""
    left = [outcome(each) for each in (run, other)]
    return bool(left[0]["checkpoint"] == left[1]["checkpoint"] and left[0]["samples"] == left[1]["samples"])


def after(original: Callable[..., Any], condition: Callable[..., bool], action: Callable[[], None]) -> Any:
    """Return `original` wrapped to call `action` after those calls that meet `condition`."""

    @wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if condition(*args):
            action()
        return result

    return wrapped


def before(original: Callable[..., Any], condition: Callable[..., bool], action: Callable[[], None]) -> Any:
    """Return `original` wrapped to call `action` before those calls that meet `condition`."""

    @wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if condition(*args):
            action()
        return original(*args, **kwargs)

    return wrapped


def plant(place: str, iteration: int, action: Callable[[], None]) -> None:
    """Make this process call `action` at a place of an iteration: within a phase, or around a rename."""
    step = f".step-{iteration:06d}"
    match place:
        case "samples":  # written, not yet in place
            Path.replace = before(Path.replace, lambda path, _: path.name.startswith(step), action)  # type: ignore[method-assign]
        case "half-written":
            is_step = lambda _, __, folder: folder.parent.name.startswith(step)  # noqa: E731
            checkpoint.save_adapter = after(checkpoint.save_adapter, is_step, action)
        case "before-rename":
            Path.rename = before(Path.rename, lambda path, _: path.name == f"{step}.tmp", action)  # type: ignore[method-assign]
        case "after-rename":
            Path.rename = after(Path.rename, lambda path, _: path.name == f"{step}.tmp", action)  # type: ignore[method-assign]
        case phase:
            Run.emit = after(Run.emit, lambda _, event: within(event, phase, iteration), action)  # type: ignore[method-assign]


def newest_checkpoint(folder: RunFolder) -> Path | None:
    """Return the newest whole checkpoint of a run."""
    return checkpoint_files.newest_checkpoint(folder)[0]


def main(argv: Sequence[str]) -> int:
    """Run `PLACE ITERATION ARGUMENT...`."""
    from workbench.cli import main as cli

    place, iteration, *arguments = argv
    plant(place, int(iteration), lambda: os.kill(os.getpid(), signal.SIGKILL))
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
