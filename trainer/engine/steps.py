"""Training on comparisons, which counts optimiser steps: what a reward model and DPO have in common."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from trainer.arrays import Purpose
from trainer.config.dpo import DPOConfig, DPOTrainConfig
from trainer.config.reward_model import RewardModelConfig, RewardTrainConfig
from trainer.distributed.ranks import Ranks
from trainer.engine.trainable import Hooks
from trainer.events import Phase, RewardModelStep
from trainer.fitting.phases import Phases, SkippedSteps
from trainer.memory.estimate import changed
from trainer.models.backbone import LoadedModel
from trainer.pairs.comparisons import Comparisons
from trainer.runs.folder import RunFolder

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


class StepTraining:
    """Steps on comparisons, of which a subclass has the loss, the evaluations and the state; see `Trainable`."""

    step_event: ClassVar[type[RewardModelStep]] = RewardModelStep
    model: LoadedModel
    data: Comparisons
    learner: Any  # with `train`, as `DPOLearner` and `RewardLearner` have it
    fingerprint = ""

    def __init__(self, config: RewardModelConfig | DPOConfig, ranks: Ranks, hooks: Hooks) -> None:
        self.config: Any = config
        self.ranks = ranks
        self.hooks = hooks
        self.report = hooks.report
        self.warnings: list[str] = []
        self.number = 0  # steps taken
        self.tokens = 0
        self.is_prepared = False
        self._memory = 0  # peak of the last step, bytes
        self._skipped = SkippedSteps("step", lambda: f"lower optim.lr ({config.optim.lr:g}) and start a new run")
        self.phases = Phases(lambda event: self.report(event), hooks.clock)

    @property
    def total(self) -> int:
        """Steps of the whole run."""
        return steps_in(len(self.data.train), self.config.train)

    @property
    def prompts(self) -> int:
        """Comparisons to train on."""
        return len(self.data.train)

    @property
    def eval_prompts(self) -> int:
        """Comparisons to evaluate on."""
        return len(self.data.held_out)

    def sizes(self) -> tuple[int, int]:
        """Return the tokens of the longest sequence, and of the widest comparison with its padding."""
        return self.data.longest, self.data.widest

    def initialise(self) -> None:
        """Begin as built."""

    def begin_in(self, folder: RunFolder) -> None:
        """Write nothing."""

    def leave(self, folder: RunFolder) -> None:
        """Write nothing: steps report themselves."""

    def opening(self) -> Callable[[], None] | None:
        """Return `prepare` until it was called, or a state restored."""
        return None if self.is_prepared else self.prepare

    def prepare(self) -> None:
        """Do what precedes the first step."""
        raise NotImplementedError

    @property
    def phase(self) -> Phase:
        """Phase that was reported last."""
        return self.phases.latest or "update"

    def peaks(self) -> Mapping[Phase, int]:
        """Return the highest memory of the last step, bytes."""
        return {"update": self._memory}

    def configure(self, config: Any, rewards: Any = None) -> None:
        """Use the micro-batches of `config` from now on."""
        tokens = config.optim.micro_batch_tokens
        self.config = self.learner.config = changed(self.config, "optim.micro_batch_tokens", tokens)

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
        self._memory = mx.get_peak_memory()
        event = self.step_event(
            iteration=number,
            comparisons=len(groups),
            **found,
            learning_rate=self.learner.optimizer.learning_rate(number),
            tokens=self.tokens,
            tokens_per_second=tokens / seconds,
            seconds=seconds,
            memory_bytes=self._memory,
            ranks=self.ranks.described(seconds, self._memory),
        )
        self.report(event)
        self._skipped.after(number, skipped=event.skipped, report=self.report)
        return event
