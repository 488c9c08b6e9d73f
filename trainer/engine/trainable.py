"""The base of the three algorithms that a run trains: PPO, DPO and the training of a reward model."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import mlx.core as mx
import numpy as np

from trainer.arrays import Purpose
from trainer.config import Config
from trainer.config.pairs import DPOConfig, DPOTrainConfig, RewardModelConfig, RewardTrainConfig
from trainer.distributed.ranks import ALONE, Ranks
from trainer.errors import UsageError, counted
from trainer.events import Phase, Report, RewardModelStep, ignored
from trainer.fitting.optimisation import Phases, SkippedSteps
from trainer.memory.estimate import changed
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.backbone import LoadedModel
from trainer.pairs.comparisons import Comparisons
from trainer.policy_checkpoint import load_checkpoint, save_checkpoint
from trainer.preferences.records import Preference
from trainer.reward_types import Wait, refuse_to_wait
from trainer.rewards import Trust, trust_all
from trainer.rewards.judge_answers import Answers
from trainer.runs.folder import RunFolder

Item = TypeVar("Item")
TrainConfig = RewardTrainConfig | DPOTrainConfig


class Hooks(NamedTuple):
    """Means that a run gives to the algorithm that it trains."""

    report: Report = ignored
    clock: Callable[[], float] = time.perf_counter  # stops while requests are handled
    check: Callable[[], None] = lambda: None  # handles requests, where there is no progress to report
    wait: Wait = refuse_to_wait  # pauses the run while a judge is down


class Trainable(ABC):
    """Algorithm that a run trains. Its iterations are optimiser steps where it has no others.

    Call `load`, `build` and perhaps `initialise`, on every rank; then `step`, each time followed by what is `due`.
    `snapshot` and `restore` may be called between steps. All ranks do the same and have the same results; the first
    one alone has a folder. The checkpoints are those of a policy unless a subclass has others.

    preferences: those to train on, instead of `config.data.preferences`; trust: as for `build_rewards`; accept_data: go
    on with other prompts than those that a resumed run trained on.
    """

    fingerprint = ""
    """Hash of the data, where a run's folder is to remember it."""
    model: LoadedModel
    actor: ActorCriticLLM
    phases: Phases
    total: int
    """Iterations of the whole run."""
    prompts: int
    """Number of prompts or comparisons to train on, and to evaluate on."""
    eval_prompts: int
    trainable: int
    """Number of parameters that are trained, once they are built."""
    sizes: tuple[int, int]
    """Tokens for the estimate of memory: `longest` and `widest` of `fit`."""

    def __init__(
        self,
        config: Any,
        ranks: Ranks = ALONE,
        hooks: Hooks = Hooks(),  # noqa: B008  immutable
        *,
        preferences: Iterable[Preference] | None = None,
        trust: Trust = trust_all,
        accept_data: bool = False,
    ) -> None:
        self.config = config
        self.ranks = ranks
        self.hooks = hooks
        self.warnings: list[str] = []
        self.number = 0  # iterations done
        self.peaks: Mapping[Phase, int] = {}  # of the last iteration, bytes
        self.answers = Answers()  # of judges
        self._preferences = preferences
        self._trust = trust
        self._accept_data = accept_data

    @abstractmethod
    def load(self, folder: RunFolder | None) -> Sequence[Any]:
        """Read data and model; return what must be the same on all ranks. folder: of a run to continue."""

    @abstractmethod
    def build(self) -> None:
        """Build what trains."""

    def initialise(self) -> None:  # noqa: B027  not every kind needs it
        """Give a run without a checkpoint its first state."""

    @abstractmethod
    def opening(self) -> Callable[[], Any] | None:
        """Return the work before the first step, a method of this object; None once it is done."""

    @abstractmethod
    def step(self) -> Any:
        """Do the next iteration."""

    @abstractmethod
    def due(self) -> Iterator[Callable[[], Any]]:
        """Yield the evaluations that are due after the iteration just done, methods of this object."""

    def leave(self, folder: RunFolder) -> None:  # noqa: B027  not every kind needs it
        """Write and report what the last work has left."""

    @abstractmethod
    def ending(self) -> str:
        """Return why nothing is left to do; empty while something is."""

    @abstractmethod
    def configure(self, config: Any, rewards: Any = None) -> None:
        """Use `config`, in which only live settings differ, from the next iteration on. rewards: its own, if new."""

    @abstractmethod
    def snapshot(self) -> Any:
        """Return the current state, with its `iteration`."""

    @abstractmethod
    def restore(self, snapshot: Any) -> None:
        """Continue from `snapshot`."""

    def write(self, folder: Path, snapshot: Any) -> None:
        """Write `snapshot` as a checkpoint. Raises StorageError."""
        save_checkpoint(folder, snapshot)

    def read(self, folder: Path) -> Any:
        """Read what `write` wrote. Raises StorageError."""
        return load_checkpoint(folder, self.actor.adapter_config)


def check_shares(config: Any, ranks: Ranks) -> None:
    """Raise UsageError if an optimiser step does not give each rank a sequence or a comparison."""
    if isinstance(config, Config):
        size, what = config.rollout.batch_size // config.ppo.minibatches, "sequence"
        name, raised = "rollout.batch_size / ppo.minibatches", "rollout.batch_size"
    else:
        size, what, name, raised = config.train.batch_size, "comparison", "train.batch_size", "train.batch_size"
    if size < ranks.size:
        part = "minibatch" if isinstance(config, Config) else "step"
        raise UsageError(
            f"a {part} of {counted(size, what)} ({name}) is too small for {ranks.size} ranks: raise {raised} or start "
            "fewer ranks"
        )


def step_groups(groups: Sequence[Item], number: int, config: TrainConfig, seed: int) -> list[Item]:
    """Return the groups of step `number`, counted from 1.

    Each epoch visits all groups in its own order, which depends on `seed` and the epoch alone.
    """
    epoch, step = divmod(number - 1, math.ceil(len(groups) / config.batch_size))
    order = np.random.default_rng([seed, Purpose.MINIBATCHES, epoch]).permutation(len(groups))
    return [groups[place] for place in order[step * config.batch_size : (step + 1) * config.batch_size]]


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
        self.total = config.train.epochs * math.ceil(len(data.train) / config.train.batch_size)
        self.prompts, self.eval_prompts = len(data.train), len(data.held_out)
        self.sizes = (data.longest, data.widest)

    def opening(self) -> Callable[[], None] | None:
        """Return `prepare` until it was called, or a state restored."""
        return None if self.is_prepared else self.prepare

    @abstractmethod
    def prepare(self) -> None:
        """Do what precedes the first step."""

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
