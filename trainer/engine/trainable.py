"""Protocol of what a run trains (PPO, a reward model, DPO), and what the run gives to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import mlx.core as mx

from trainer.events import Phase, Report
from trainer.models.backbone import LoadedModel
from trainer.runs.folder import RunFolder


class Hooks(NamedTuple):
    """Means that a run gives to the algorithm that it trains."""

    report: Report
    clock: Callable[[], float] = time.perf_counter  # stops while requests are handled
    check: Callable[[], None] = lambda: None  # handles requests, where there is no progress to report


class Trainable(Protocol):
    """Algorithm that a run trains: PPO, a reward model, DPO. Its iterations are optimiser steps where it has no others.

    Call `load`, `build` and perhaps `initialise`, on every rank; then `step`, each time followed by what is `due`.
    `snapshot` and `restore` may be called between steps. All ranks do the same and have the same results; the first
    one alone has a folder.
    """

    config: Any
    model: LoadedModel
    warnings: list[str]

    @property
    def fingerprint(self) -> str:
        """Hash of the data, where a run's folder is to remember it; else empty."""

    @property
    def total(self) -> int:
        """Iterations of the whole run."""

    @property
    def prompts(self) -> int:
        """Prompts or comparisons to train on."""

    @property
    def eval_prompts(self) -> int:
        """Prompts or comparisons to evaluate on."""

    def load(self, folder: RunFolder | None) -> Sequence[Any]:
        """Read data and model; return what must be the same on all ranks. folder: of a run to continue."""

    def build(self, config: Any) -> None:
        """Build what trains. config: the run's, with the layers of a saved adapter."""

    def initialise(self) -> None:
        """Give a run without a checkpoint its first state."""

    def sizes(self) -> tuple[int, int]:
        """Return tokens for the estimate of memory: `longest` and `widest` of `fit`."""

    def trainable(self) -> Sequence[mx.array]:
        """Return the arrays that are trained."""

    def begin_in(self, folder: RunFolder) -> None:
        """Complete what the folder of the run has, before the first step."""

    def opening(self) -> Callable[[], Any] | None:
        """Return the work before the first step, a method of this object; None once it is done."""

    def step(self) -> Any:
        """Do the next iteration."""

    def peaks(self) -> Mapping[Phase, int]:
        """Return the highest memory of the last iteration by phase, bytes."""

    @property
    def phase(self) -> Phase:
        """Phase that was reported last."""

    def due(self) -> Iterator[Callable[[], Any]]:
        """Yield the evaluations that are due after the iteration just done, methods of this object."""

    def leave(self, folder: RunFolder) -> None:
        """Write and report what the last work has left."""

    @property
    def is_finished(self) -> bool:
        """Return whether nothing is left to do."""

    @property
    def reason(self) -> str:
        """Return why nothing is left to do."""

    def configure(self, config: Any, rewards: Any = None) -> None:
        """Use `config`, in which only live settings differ, from the next iteration on. rewards: its own, if new."""

    def snapshot(self) -> Any:
        """Return the current state, with its `iteration`."""

    def restore(self, snapshot: Any) -> None:
        """Continue from `snapshot`."""

    def write(self, folder: Path, snapshot: Any) -> None:
        """Write `snapshot` as a checkpoint. Raises StorageError."""

    def read(self, folder: Path) -> Any:
        """Read what `write` wrote. Raises StorageError."""

    def shared_state(self) -> tuple[dict[str, Any], Any]:
        """Return the current state for the other ranks: its plain values, and a tree of its arrays."""

    def take_over(self, state: dict[str, Any]) -> None:
        """Continue from the state of the first rank, whose plain values are `state`."""
