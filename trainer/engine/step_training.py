"""Training of a reward model or by DPO, which counts steps: the next step, and what is due after it."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from trainer.config.dpo import DPOConfig, DPOTrainConfig
from trainer.config.reward_model import RewardModelConfig, RewardTrainConfig
from trainer.distributed.ranks import ALONE, Ranks
from trainer.events import Report, RewardModelStep
from trainer.fitting.memory_limit import Smaller
from trainer.fitting.phases import Phases, SkippedSteps
from trainer.memory.estimate import changed
from trainer.seeding import Purpose

if TYPE_CHECKING:
    from trainer.fitting.optimizer import StepOptimizer

Item = TypeVar("Item")
TrainConfig = RewardTrainConfig | DPOTrainConfig


def steps_in(groups: int, config: TrainConfig) -> int:
    """Return the number of optimiser steps of the whole run over `groups` groups."""
    return config.epochs * math.ceil(groups / config.batch_size)


def step_groups(groups: Sequence[Item], number: int, config: TrainConfig, seed: int) -> list[Item]:
    """Return the groups of step `number`, counted from 1.

    Each epoch visits all groups in its own order, which depends on `seed` and the epoch alone.
    """
    epoch, step = divmod(number - 1, math.ceil(len(groups) / config.batch_size))
    order = _epoch_order(len(groups), epoch, seed)
    return [groups[place] for place in order[step * config.batch_size : (step + 1) * config.batch_size]]


@functools.lru_cache(maxsize=1)
def _epoch_order(groups: int, epoch: int, seed: int) -> npt.NDArray[np.int64]:
    """Return the places of the groups in the order of the epoch; kept, because a million take 30 ms to shuffle."""
    return np.random.default_rng([seed, Purpose.MINIBATCHES, epoch]).permutation(groups)


class StepData(Protocol):
    """Groups of sequences to train and to evaluate on, and warnings for the user."""

    @property
    def train(self) -> Sequence[Any]:
        """Groups to train on."""

    @property
    def held_out(self) -> Sequence[Any]:
        """Groups to evaluate on."""

    @property
    def warnings(self) -> Sequence[str]:
        """One line each."""

    @property
    def fingerprint(self) -> str:
        """Hash of the groups."""

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence to train on."""

    @property
    def widest(self) -> int:
        """Tokens of the largest group to train on, padding included."""


class StepLearner(Protocol):
    """Policy or reward model in training: its loss, its gradient, and Adam."""

    config: Any
    optimizer: StepOptimizer

    def gradients(self, groups: Any) -> Any:
        """Return the gradient of the mean loss over `groups`, and what it measured."""

    def train(self, groups: Any, number: int, progress: Callable[[int, int], None]) -> dict[str, Any]:
        """Take step `number` on `groups`; return the fields of the step's event that the loss gives."""


class StepTraining(ABC):
    """Training on comparisons, step by step. It writes no files.

    Call `prepare` once, then `step`, each time followed by what is `due`. `snapshot` and `restore` may be called
    between steps. On several ranks, each one calls the same methods and has the same results.
    """

    step_event: ClassVar[type[RewardModelStep]] = RewardModelStep
    learner: StepLearner

    def __init__(
        self,
        config: RewardModelConfig | DPOConfig,
        data: StepData,
        report: Report,
        clock: Callable[[], float],
        ranks: Ranks = ALONE,
    ) -> None:
        self.config = config
        self.data = data
        self.report = report
        self.ranks = ranks
        self.total_steps = steps_in(len(data.train), config.train)
        self.number = 0  # steps taken
        self.tokens = 0
        self.is_prepared = False
        self._skipped = SkippedSteps("step", lambda: f"lower optim.lr ({config.optim.lr:g}) and start a new run")
        self.phases = Phases(report, clock)

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Return whether all steps have been taken."""

    @property
    @abstractmethod
    def reason(self) -> str:
        """Return why there are no more steps."""

    @abstractmethod
    def prepare(self) -> None:
        """Do what precedes the first step."""

    @abstractmethod
    def due(self) -> Iterator[Callable[[], object]]:
        """Yield the evaluations that are due after the step just taken, methods of this object."""

    @abstractmethod
    def snapshot(self) -> Any:
        """Return the current state, a `StepSnapshot`."""

    @abstractmethod
    def restore(self, snapshot: Any) -> None:
        """Continue from `snapshot`."""

    @abstractmethod
    def plain_state(self) -> dict[str, Any]:
        """Return what is not an array in the current state, for the other ranks."""

    @abstractmethod
    def arrays(self) -> Any:
        """Return the arrays of that state, as one tree."""

    @abstractmethod
    def take_over(self, state: dict[str, Any]) -> None:
        """Continue from the state of the first rank, which `plain_state` has returned there."""

    def lower(self, change: Smaller) -> None:
        """Use smaller micro-batches from now on."""
        self.config = self.learner.config = changed(self.config, *change)

    def step(self) -> RewardModelStep:
        """Take the next step: the gradient over its comparisons, then Adam.

        Raises DivergedError when loss or gradient is NaN or inf for the third time in a row.
        """
        number = self.number + 1
        groups = step_groups(self.data.train, number, self.config.train, self.config.run.seed)
        mx.reset_peak_memory()
        self.ranks.begin()
        started = self.phases.clock()
        found = self.learner.train(groups, number, self.phases.start(number, "update"))
        seconds = self.phases.clock() - started
        tokens = sum(group.tokens for group in groups)
        self.number = number
        self.tokens += tokens
        peak = mx.get_peak_memory()
        event = self.step_event(
            iteration=number,
            comparisons=len(groups),
            **found,
            learning_rate=self.learner.optimizer.learning_rate(number),
            tokens=self.tokens,
            tokens_per_second=tokens / seconds,
            seconds=seconds,
            memory_bytes=peak,
            ranks=self.ranks.described(seconds, peak),
        )
        self.report(event)
        self._skipped.after(number, skipped=event.skipped, report=self.report)
        return event
