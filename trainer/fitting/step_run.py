"""Training of a reward model or by DPO, which counts steps, and its run: the loop, evaluations and checkpoints."""

from __future__ import annotations

import contextlib
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from trainer.config.dpo import DPOConfig, DPOTrainConfig
from trainer.config.reward_model import RewardModelConfig, RewardTrainConfig
from trainer.control.control import Control, Interrupted
from trainer.control.lifecycle import RunUnderWay
from trainer.errors import OutOfMemoryError
from trainer.events import Event, Phase, PhaseProgress, RewardModelStep, RunEnded, SettingChanged
from trainer.fitting.memory_limit import (
    REFUSED,
    Smaller,
    is_on_gpu,
    lowered,
    peak_of,
    set_memory_limit,
    smaller_micro_batch,
    too_large,
    until_it_fits,
)
from trainer.fitting.phases import Phases, SkippedSteps
from trainer.memory.estimate import clear_footprint
from trainer.memory.savings import changed
from trainer.models.backbone import LoadedModel, quantize_warning
from trainer.models.cpu.blas import blas_warning, measure_matmul
from trainer.runs.checkpoint_files import load_newest
from trainer.runs.folder import write_config
from trainer.runs.sinks import Sinks
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
    def longest(self) -> int:
        """Tokens of the longest sequence to train on."""

    @property
    def widest(self) -> int:
        """Tokens of the largest group to train on, padding included."""

    def longest_groups(self, most: int, tokens: int) -> Sequence[Any]:
        """Return the longest groups that fit one micro-batch of `tokens`, at most `most`."""


class StepLearner(Protocol):
    """Policy or reward model in training: its loss, its gradient, and Adam."""

    config: Any
    optimizer: StepOptimizer

    def gradients(self, groups: Any) -> Any:
        """Return the gradient of the mean loss over `groups`, and what it measured."""

    def train(self, groups: Any, number: int, progress: Callable[[int, int], None]) -> dict[str, Any]:
        """Take step `number` on `groups`; return the fields of the step's event that the loss gives."""


class StepSnapshot(Protocol):
    """State after a whole step."""

    iteration: int


class StepTraining(ABC):
    """Training on comparisons, step by step. It writes no files.

    Call `prepare` once, then `step`, each time followed by what is `due`. `snapshot` and `restore` may be called
    between steps.
    """

    step_event: ClassVar[type[RewardModelStep]] = RewardModelStep
    learner: StepLearner

    def __init__(
        self,
        config: RewardModelConfig | DPOConfig,
        data: StepData,
        emit: Callable[[Event], None],
        control: Control | None,
    ) -> None:
        self.config = config
        self.data = data
        self.emit = emit
        self.control = control or Control()
        self.total_steps = steps_in(len(data.train), config.train)
        self.number = 0  # steps taken
        self.tokens = 0
        self.is_prepared = False
        self._skipped = SkippedSteps("step", lambda: f"lower optim.lr ({config.optim.lr:g}) and start a new run")
        self._phases = Phases(lambda event: self.emit(event), self.control)

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
        """Yield the evaluations that are due after the step just taken."""

    @abstractmethod
    def snapshot(self) -> Any:
        """Return the current state, a `StepSnapshot`."""

    @abstractmethod
    def restore(self, snapshot: Any) -> None:
        """Continue from `snapshot`."""

    def lower(self, change: Smaller) -> None:
        """Use smaller micro-batches from now on."""
        self.config = self.learner.config = changed(self.config, *change)

    def largest_peak(self) -> int:
        """Compute the gradient of the longest micro-batch, and return the peak of MLX's allocations, as `peak_of`."""
        config = self.config
        groups = self.data.longest_groups(config.train.batch_size, config.optim.micro_batch_tokens)
        return peak_of(lambda: self.learner.gradients(groups))

    def step(self) -> RewardModelStep:
        """Take the next step: the gradient over its comparisons, then Adam.

        Raises DivergedError when loss or gradient is NaN or inf for the third time in a row.
        """
        number = self.number + 1
        groups = step_groups(self.data.train, number, self.config.train, self.config.run.seed)
        mx.reset_peak_memory()
        started = self.control.clock()
        found = self.learner.train(groups, number, self._phases.report(number, "update"))
        seconds = self.control.clock() - started
        tokens = sum(len(sequence) for group in groups for sequence in group.sequences)
        self.number = number
        self.tokens += tokens
        event = self.step_event(
            iteration=number,
            comparisons=len(groups),
            **found,
            learning_rate=self.learner.optimizer.learning_rate(number),
            tokens=self.tokens,
            tokens_per_second=tokens / seconds,
            seconds=seconds,
            memory_bytes=mx.get_peak_memory(),
        )
        self.emit(event)
        self._skipped.after(number, skipped=event.skipped, emit=self.emit)
        return event


class Loaded(NamedTuple):
    """Parts of a run, once they are loaded."""

    model: LoadedModel
    fit: StepTraining
    trainable: Callable[[Any], Sequence[mx.array]]  # of a snapshot
    read: Callable[[Path], Any]  # a snapshot from a checkpoint's folder
    write: Callable[[Path, Any], None]
    pairs: str = ""  # fingerprint of the comparisons, for the folder of a new run
    evaluated: Callable[[], None] = lambda: None  # called after each evaluation


class StepRun:
    """A run that counts steps, from its first step to its last."""

    parts: Loaded
    snapshot: StepSnapshot

    def __init__(
        self, config: RewardModelConfig | DPOConfig, resume: Path | None, out: Sinks, control: Control
    ) -> None:
        self.config = config
        self.run = RunUnderWay(self, resume, out, control)
        self._lowered: list[Smaller] = []  # in use, and not yet in config.toml

    @property
    def iteration(self) -> int:
        """Number of the last whole step."""
        return self.snapshot.iteration

    def train(self, load: Callable[[], Loaded], preset: str) -> RunEnded:
        """Load everything, then create or open the run and train. A failed start leaves nothing behind."""
        run = self.run
        run.find_folder()
        self.memory_limit = set_memory_limit(self.config.model)  # bytes
        self.parts = parts = load()
        run.warnings += filter(None, (blas_warning(measure_matmul()), quantize_warning(self.config.model)))
        run.warnings += parts.fit.data.warnings
        self._fit()
        self.snapshot = parts.fit.snapshot()
        return run.in_folder(preset, self._steps, parts.fit.total_steps, pairs=parts.pairs)

    def save(self) -> None:
        """Save the last whole step, unless it is saved already."""
        self.run.guard.check()
        if self.parts.fit.is_prepared:
            self.run.checkpoints.save(self.iteration, lambda path: self.parts.write(path, self.snapshot))

    def _fit(self) -> None:
        """Make micro-batches as small as the memory requires, before the first step, unless the run is to end."""
        limit, fit = self.memory_limit, self.parts.fit
        while True:
            clear = clear_footprint(self.config, fit.data.longest, limit, gpu=is_on_gpu())
            try:
                peak = clear.peak_of("update") if clear else self._tried_peak()
            except Interrupted:
                return
            if peak <= limit:
                return
            change = self._smaller("update")
            self.run.warnings.append(lowered(self.config, change, "update", peak, limit))
            self.config = changed(self.config, *change)
            fit.lower(change)

    def _tried_peak(self) -> int:
        """Try the largest part of a step, and return its peak. Raises Interrupted if the run is to end."""
        self.run.control.check_end()
        self.run.state("checking")
        self.run.emit(PhaseProgress(iteration=0, phase="update", done=0, total=1))
        return self.parts.fit.largest_peak()

    def _smaller(self, phase: Phase) -> Smaller:
        """Return the change that halves micro-batches. Raises OutOfMemoryError if they are one comparison already."""
        config, data = self.parts.fit.config, self.parts.fit.data
        change = smaller_micro_batch(config.optim.micro_batch_tokens, data.widest, config.train.batch_size)
        if change is None:
            raise too_large(phase, self.memory_limit)
        return change

    def _make_smaller(self, phase: Phase, peak: int) -> None:
        """Use micro-batches of half the size from now on; `_save_lowered` makes them those of a resumed run."""
        change, fit = self._smaller(phase), self.parts.fit
        self.run.alert("warning", "out_of_memory", lowered(fit.config, change, phase, peak, self.memory_limit))
        fit.lower(change)
        self._lowered.append(change)

    def _save_lowered(self) -> None:
        """Write what was lowered into config.toml, after a checkpoint: a resumed run must not repeat steps with it."""
        if self._lowered:
            self.save()
        for change in self._lowered:
            old = self.config.optim.micro_batch_tokens
            self.config = changed(self.config, *change)
            write_config(self.run.folder, self.config)
            self.run.emit(SettingChanged(iteration=self.iteration + 1, key=change.key, old=old, value=change.value))
        self._lowered.clear()

    def _step(self) -> None:
        """Take a step; when an allocation fails, take it again in smaller parts."""
        fit = self.parts.fit

        def make_smaller() -> None:
            fit.restore(self.snapshot)
            self._make_smaller("update", REFUSED)
            self._save_lowered()

        event = until_it_fits(fit.step, make_smaller)
        if event.memory_bytes > self.memory_limit:
            with contextlib.suppress(OutOfMemoryError):  # it did fit, if barely
                self._make_smaller("update", event.memory_bytes)

    def _begin(self) -> None:
        run, parts, fit = self.run, self.parts, self.parts.fit
        loaded, problems = load_newest(run.folder, parts.read)
        if loaded is not None:
            self.snapshot = loaded
            fit.restore(loaded)
            run.checkpoints.saved_at = loaded.iteration
        run.begin(
            parts.model,
            trainable=parts.trainable(self.snapshot),
            prompts=len(fit.data.train),
            eval_prompts=len(fit.data.held_out),
        )
        run.report_damaged(problems)

    def _steps(self) -> str:
        """Take the remaining steps; return why there are no more."""
        self._begin()
        run, fit, every = self.run, self.parts.fit, self.config.checkpoint.every
        if not fit.is_prepared:
            self._evaluate(fit.prepare)
            self.snapshot = fit.snapshot()
            self._save_lowered()
            if every:
                self.save()
        between = run.control.check  # a step requested before ends with the first one
        while not fit.finished:
            run.state("training")
            between()
            between = run.control.between_iterations
            self._step()
            for evaluate in fit.due():
                self._evaluate(evaluate)
            # Not earlier: a run that ends during its evaluation then repeats both the step and the evaluation.
            self.snapshot = fit.snapshot()
            self._save_lowered()
            if every and self.iteration % every == 0:
                self.save()
        return fit.reason

    def _evaluate(self, evaluate: Callable[[], object]) -> None:
        self.run.state("evaluating")
        until_it_fits(evaluate, lambda: self._make_smaller("evaluate", REFUSED))
        self.parts.evaluated()
