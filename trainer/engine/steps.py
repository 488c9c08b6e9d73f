"""Training on comparisons, which counts optimiser steps: what a reward model and DPO have in common."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from trainer.arrays import Purpose
from trainer.config.dpo import DPOConfig, DPOTrainConfig
from trainer.config.reward_model import RewardModelConfig, RewardTrainConfig
from trainer.engine.trainable import Trainable
from trainer.events import RewardModelStep
from trainer.fitting.phases import Phases, SkippedSteps
from trainer.memory.estimate import changed
from trainer.pairs.comparisons import Comparisons

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


class StepTraining(Trainable):
    """Steps on comparisons, of which a subclass has the loss, the evaluations and the state."""

    step_event: ClassVar[type[RewardModelStep]] = RewardModelStep
    data: Comparisons
    learner: Any  # with `train`, as `DPOLearner` and `RewardLearner` have it

    def __init__(self, config: RewardModelConfig | DPOConfig, *arguments: Any, **options: Any) -> None:
        super().__init__(config, *arguments, **options)
        self.tokens = 0
        self.is_prepared = False
        self._skipped = SkippedSteps("step", lambda: f"lower optim.lr ({config.optim.lr:g}) and start a new run")
        self.phases = Phases(self.hooks.report, self.hooks.clock)

    def use_data(self, config: Any, data: Comparisons) -> None:
        """Train on `data` by `config`."""
        self.config, self.data = config, data
        self.total = steps_in(len(data.train), config.train)
        self.prompts, self.eval_prompts = len(data.train), len(data.held_out)
        self.sizes = (data.longest, data.widest)

    def opening(self) -> Callable[[], None] | None:
        """Return `prepare` until it was called, or a state restored."""
        return None if self.is_prepared else self.prepare

    def prepare(self) -> None:
        """Do what precedes the first step."""
        raise NotImplementedError

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
        memory = mx.get_peak_memory()
        self.peaks = {"update": memory}
        event = self.step_event(
            iteration=number,
            comparisons=len(groups),
            **found,
            learning_rate=self.learner.optimizer.learning_rate(number),
            tokens=self.tokens,
            tokens_per_second=tokens / seconds,
            seconds=seconds,
            memory_bytes=memory,
            ranks=self.ranks.described(seconds, memory),
        )
        self.hooks.report(event)
        self._skipped.after(number, skipped=event.skipped, report=self.hooks.report)
        return event
