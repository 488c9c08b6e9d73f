"""TensorBoard, Weights & Biases and trackio as sinks: the numbers of iterations or steps, and of evaluations."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from trainer.errors import UsageError
from trainer.events import Evaluation, Event, HumanEvaluation, Iteration, RewardModelEvaluation, RewardModelStep
from trainer.files import own_folder
from trainer.runs.sinks import Sink

PROJECT = "ppo-workbench"
"""Name of the project in Weights & Biases and trackio."""

Recorded = Iteration | RewardModelStep | Evaluation | RewardModelEvaluation | HumanEvaluation
"""Events whose numbers are recorded, for all kinds of run; events of DPO are subclasses."""

_NO_METRICS = ("iteration", "averaged", "best_of")  # the last two say how an evaluation is made

_log = logging.getLogger("trainer")


class Backend(Protocol):
    """Interface of a tracker's library, reduced to what is used."""

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Record `metrics` of iteration `step`."""

    def finish(self) -> None:
        """Write what is left and close."""


class Tracker:
    """Sink that passes numbers to a backend. Errors never end a run; the first is logged as a warning."""

    def __init__(self, name: str, backend: Backend) -> None:
        self.name = name
        self._backend = backend
        self._warned = False

    def emit(self, event: Event) -> None:
        """Record the numbers of an event that has some; ignore other events."""
        if isinstance(event, Recorded):
            numbers = metrics(event)
            self._guarded(lambda: self._backend.log(numbers, step=event.iteration))

    def close(self) -> None:
        """Finish the backend."""
        self._guarded(self._backend.finish)

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001  third-party code must not end a run
            if not self._warned:
                self._warned = True
                _log.warning("tracker %s: %s; training continues, some points may be missing", self.name, _line(error))


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
    values = event.as_dict()
    numbers = {prefix + name: value for name, value in values.items() if isinstance(value, int | float)}
    for name in _NO_METRICS:
        numbers.pop(prefix + name, None)
    if isinstance(event, Iteration):
        numbers |= _finite("seconds", values["seconds"]) | _finite("memory", values["memory"])
    if isinstance(event, Iteration | Evaluation) and len(event.parts) > 1:
        numbers |= _finite(f"{prefix}parts", values["parts"])
    return numbers


def _finite(name: str, values: Mapping[str, float | None]) -> dict[str, float]:
    return {f"{name}/{key}": value for key, value in values.items() if value is not None}


def build_trackers(names: Sequence[str], run_name: str, folder: Path, config_dict: Mapping[str, Any]) -> list[Sink]:
    """Build a sink for each of `names`: tensorboard (its files go to `folder`/tensorboard), wandb, trackio.

    Raises UsageError if a tracker's package is missing, with the extra to install, or if it does not start.
    """
    trackers: list[Sink] = []
    try:
        for name in names:
            backend = _started(name, run_name, folder, dict(config_dict))
            trackers.append(Tracker(name, backend))
    except UsageError:
        for tracker in trackers:
            tracker.close()
        raise
    return trackers


class _TensorBoard:
    def __init__(self, library: Any, folder: Path) -> None:
        self._writer = library.SummaryWriter(logdir=str(folder / "tensorboard"), flush_secs=10)

    def log(self, metrics: dict[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def finish(self) -> None:
        self._writer.close()


class _Wandb:
    def __init__(self, library: Any, run_name: str, folder: Path, config: dict[str, Any]) -> None:
        # Otherwise it captures stdout and stderr and prints its own lines over whatever is on the screen.
        settings = library.Settings(console="off", silent=True)
        self._run = library.init(project=PROJECT, name=run_name, dir=str(folder), config=config, settings=settings)
        self._step = 0

    def log(self, metrics: dict[str, float], step: int) -> None:
        self._step = max(self._step, step)  # wandb drops earlier steps, and people judge past iterations
        self._run.log(metrics, step=self._step)

    def finish(self) -> None:
        self._run.finish()


def _started(name: str, run_name: str, folder: Path, config: dict[str, Any]) -> Backend:
    try:
        library = importlib.import_module({"tensorboard": "tensorboardX"}.get(name, name))
    except ImportError:
        raise UsageError(
            f"run.trackers: '{name}' is not installed: pip install 'ppo-workbench[{name}]', or leave it out"
        ) from None
    try:
        if name in ("tensorboard", "wandb"):
            own_folder(folder / name)  # they write into it: never through a link
        if name == "tensorboard":
            return _TensorBoard(library, folder)
        if name == "wandb":
            return _Wandb(library, run_name, folder, config)
        trackio: Backend = library.init(project=PROJECT, name=run_name, config=config)
        return trackio
    except Exception as error:  # noqa: BLE001  no account, no network, no room: each library has its own errors
        raise UsageError(f"run.trackers: '{name}' does not start: {_line(error)}; fix that or leave it out") from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
