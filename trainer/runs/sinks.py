"""Sinks of a run's events: the progress file, and trackers: TensorBoard, Weights & Biases, trackio."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from trainer.errors import UsageError, one_line
from trainer.events import (
    Evaluation,
    Event,
    HumanEvaluation,
    Iteration,
    PhaseProgress,
    RewardModelEvaluation,
    RewardModelStep,
)
from trainer.files import PRIVATE, SHARED, own_folder, read_regular, write_whole
from trainer.runs.journal import event_in, values_in

PROJECT = "ppo-workbench"
"""Name of the project in Weights & Biases and trackio."""

Recorded = Iteration | RewardModelStep | Evaluation | RewardModelEvaluation | HumanEvaluation
"""Events whose numbers are recorded, for all kinds of run; events of DPO are subclasses."""

_NO_METRICS = ("iteration", "averaged", "best_of")  # the last two say how an evaluation is made
_SECONDS = 0.25  # between two writes of a phase; its beginning is always written, as its first step may take long

_log = logging.getLogger("trainer")


class Sink(Protocol):
    """Receiver of events, in order. `close` is called once, also after a failure."""

    def emit(self, event: Event) -> None:
        """Receive one event. The trainer's thread calls this, so it must be quick."""

    def close(self) -> None:
        """Flush and release what the sink holds."""


class ProgressFile:
    """Sink that keeps the newest transient event in a file, written at most four times a second within a phase.

    `close` removes the file; `kill -9` leaves it behind. Write errors are ignored, because the file is no loss. clock:
    seconds. shared: others may read it.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic, *, shared: bool = False) -> None:
        self.path = path
        self._clock = clock
        self._mode = SHARED if shared else PRIVATE
        self._written, self._phase = 0.0, ("", 0)
        self.close()

    def emit(self, event: Event) -> None:
        """Write `event` if it reports progress, unless another one of its phase was just written."""
        if not isinstance(event, PhaseProgress):
            return
        now, phase = self._clock(), (event.phase, event.iteration)
        if phase == self._phase and now - self._written < _SECONDS:
            return
        self._written, self._phase = now, phase
        with contextlib.suppress(OSError):
            write_whole(self.path, json.dumps({"event": event.kind, **asdict(event)}), mode=self._mode)

    def close(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)


def read_progress(path: Path) -> PhaseProgress | None:
    """Return what a `ProgressFile` wrote last; None if there is no such file or it contains something else.

    A killed process leaves its file behind: call this only for a run that is live.
    """
    try:
        event = event_in(values_in(read_regular(path)))
    except (OSError, ValueError):
        return None
    return event if isinstance(event, PhaseProgress) else None


class Tracker:
    """Sink that passes numbers to a tracker's library. Errors never end a run; the first is logged as a warning."""

    def __init__(self, name: str, library: Any, run_name: str, folder: Path, config: dict[str, Any]) -> None:
        self.name = name
        self._step = 0
        self._warned = False
        if name in ("tensorboard", "wandb"):
            own_folder(folder / name)  # they write into it: never through a link
        if name == "tensorboard":
            self._run = library.SummaryWriter(logdir=str(folder / name), flush_secs=10)
            return
        about = {"project": PROJECT, "name": run_name, "config": config}
        if name == "wandb":
            # Otherwise it captures stdout and stderr and prints its own lines over whatever is on the screen.
            about |= {"dir": str(folder), "settings": library.Settings(console="off", silent=True)}
        self._run = library.init(**about)

    def emit(self, event: Event) -> None:
        """Record the numbers of an event that has some; ignore other events."""
        if isinstance(event, Recorded):
            # Wandb drops earlier steps, and people judge past iterations.
            self._step = max(self._step, event.iteration) if self.name == "wandb" else event.iteration
            with self._guarded():
                numbers = metrics(event)
                if self.name != "tensorboard":
                    self._run.log(numbers, step=self._step)
                    return
                for name, value in numbers.items():
                    self._run.add_scalar(name, value, self._step)

    def close(self) -> None:
        """Finish the library's run."""
        with self._guarded():
            self._run.close() if self.name == "tensorboard" else self._run.finish()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001  third-party code must not end a run
            if not self._warned:
                self._warned = True
                reason = one_line(error)
                _log.warning("tracker %s: %s; training continues, some points may be missing", self.name, reason)


def metrics(event: Recorded) -> dict[str, float]:
    """Return the finite numbers of `event`, under names like `score_mean`, `seconds/generate` and `memory/update`.

    Numbers from samples on held-out prompts are under `eval/`, those that people judged under `eval/human_`, those from
    held-out comparisons under `held_out/`; a DPO run has both. If there is more than one reward source, their scores
    are `parts/NAME`.
    """
    match event:
        case HumanEvaluation():
            prefix = "eval/human_"
        case Evaluation():
            prefix = "eval/"
        case RewardModelEvaluation():
            prefix = "held_out/"
        case _:
            prefix = ""
    values = {name: value for name, value in event.as_dict().items() if name not in _NO_METRICS}
    tables = ["seconds", "memory"] if isinstance(event, Iteration) else []
    if isinstance(event, Iteration | Evaluation) and len(event.parts) > 1:
        tables.append("parts")
    for table in tables:
        values |= {f"{table}/{key}": value for key, value in values[table].items()}
    return {prefix + name: value for name, value in values.items() if isinstance(value, int | float)}


def build_trackers(names: Sequence[str], run_name: str, folder: Path, config: Mapping[str, Any]) -> list[Sink]:
    """Build a sink for each of `names`: tensorboard (its files go to `folder`/tensorboard), wandb, trackio.

    Raises UsageError if a tracker's package is missing, with the extra to install, or if it does not start.
    """
    trackers: list[Sink] = []
    try:
        for name in names:
            try:
                library = importlib.import_module({"tensorboard": "tensorboardX"}.get(name, name))
            except ImportError:
                raise UsageError(
                    f"run.trackers: '{name}' is not installed: pip install 'ppo-workbench[{name}]', or leave it out"
                ) from None
            try:
                trackers.append(Tracker(name, library, run_name, folder, dict(config)))
            except Exception as error:  # noqa: BLE001  no account, no network: each library has its own errors
                reason = one_line(error)
                raise UsageError(f"run.trackers: '{name}' does not start: {reason}; fix that or leave it out") from None
    except UsageError:
        for tracker in trackers:
            tracker.close()
        raise
    return trackers
