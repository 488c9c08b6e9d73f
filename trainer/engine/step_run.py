"""Run of a reward model or of DPO, which counts steps: the loop, evaluations and checkpoints, on one rank or more."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import mlx.core as mx

from trainer.config import SCHEMAS
from trainer.config.dpo import DPOConfig
from trainer.config.problems import validate_as
from trainer.config.reward_model import RewardModelConfig
from trainer.distributed.ranks import ALONE, Ranks
from trainer.engine.control import Control
from trainer.engine.lifecycle import RunUnderWay
from trainer.engine.step_training import StepData, StepTraining
from trainer.errors import OutOfMemoryError, UsageError
from trainer.events import Phase, RunEnded, SettingChanged
from trainer.fitting.memory_limit import (
    REFUSED,
    Smaller,
    fit,
    free_memory,
    lowered,
    set_memory_limit,
    smaller_parts,
    until_it_fits,
)
from trainer.memory.estimate import changed
from trainer.models.adapters import with_saved_layers
from trainer.models.backbone import quantize_warning
from trainer.models.cpu.blas import blas_warning, measure_matmul
from trainer.plurals import counted
from trainer.preference_data.comparisons import Material
from trainer.runs.checkpoint_files import load_newest, newest_checkpoint
from trainer.runs.folder import write_config
from trainer.runs.sinks import Sinks

Result = TypeVar("Result")
StepConfig = RewardModelConfig | DPOConfig


class StepSnapshot(Protocol):
    """State after a whole step."""

    iteration: int


class Files(NamedTuple):
    """How a run writes and reads its snapshots."""

    trainable: Callable[[Any], Sequence[mx.array]]  # of a snapshot
    read: Callable[[Path], Any]  # a snapshot from a checkpoint's folder
    write: Callable[[Path, Any], None]
    pairs: str = ""  # fingerprint of the comparisons, for the folder of a new run
    evaluated: Callable[[], None] = lambda: None  # called after each evaluation


class Kind(Protocol):
    """A kind of run that counts steps. Every rank reads and builds; the first one alone has files."""

    adapter: str
    """Folder of the trained adapter in a checkpoint."""

    def read(self) -> Material:
        """Read the preferences and load the model. Raises TrainerError."""

    def build(self, config: Any, found: Material) -> StepTraining:
        """Build what trains. config: the run's, with the layers of its adapter."""

    def files(self, fit: Any) -> Files:
        """Return how snapshots of `fit` are saved."""


def follow_steps(ranks: Ranks, config: StepConfig, kind: Kind) -> None:
    """Train with the first rank, which has sent `config`, until it ends the run; write no files and print nothing.

    Raises TrainerError.
    """
    ranks.timeout = config.run.rank_timeout
    found, _ = _read(ranks, config, kind)
    if (said := ranks.hear())["do"] == "end":
        return
    fit = kind.build(validate_as(SCHEMAS[config.kind], said["config"]), found)

    def work(said: dict[str, Any]) -> None:
        tokens = said["micro_batch_tokens"]
        if tokens != fit.config.optim.micro_batch_tokens:
            fit.lower(Smaller("optim.micro_batch_tokens", tokens))
        if said["state"] is not None:
            fit.take_over(said["state"])
        getattr(fit, said["do"])()

    ranks.follow(work, free_memory)


def _read(ranks: Ranks, config: StepConfig, kind: Kind) -> tuple[Material, int]:
    """Load model and data on every rank, which must have the same.

    Returns them and the bytes of memory that the run may take.
    """
    with ranks.all_or_none(ends=True):
        limit = set_memory_limit(config.model)
        found = kind.read()
    data: StepData = found.data
    ranks.check_same(found.model.folder, [data.fingerprint])
    return found, min(ranks.gather(limit))


class StepRun:
    """A run that counts steps, from its first step to its last."""

    fit: StepTraining
    files: Files
    snapshot: StepSnapshot

    def __init__(
        self, config: StepConfig, resume: Path | None, out: Sinks, control: Control, ranks: Ranks = ALONE
    ) -> None:
        self.config = config
        self.ranks = ranks
        self.run = RunUnderWay(self, resume, out, control, ranks=ranks)
        self._lowered: list[Smaller] = []  # in use, and not yet in config.toml

    @property
    def iteration(self) -> int:
        """Number of the last whole step."""
        return self.snapshot.iteration

    def train(self, kind: Kind, preset: str) -> RunEnded:
        """Load everything, then create or open the run and train. A failed start leaves nothing behind."""
        try:
            return self._trained(kind, preset)
        finally:
            self.ranks.end()

    def _trained(self, kind: Kind, preset: str) -> RunEnded:
        run, ranks = self.run, self.ranks
        check_shares(self.config, ranks)
        ranks.timeout = self.config.run.rank_timeout
        run.find_folder()
        ranks.tell("load", config=self.config.model_dump(mode="json"))
        found, self.memory_limit = _read(ranks, self.config, kind)  # bytes
        ranks.idle = True
        saved, _ = newest_checkpoint(run.folder) if run.resume else (None, [])  # loading it reports damaged ones
        config = with_saved_layers(self.config, saved / kind.adapter) if saved else self.config
        ranks.tell("begin", config=config.model_dump(mode="json"))
        self.fit = kind.build(config, found)
        ranks.idle = True
        self.model, self.files = found.model, kind.files(self.fit)
        run.warnings += found.warnings
        run.warnings += filter(None, (blas_warning(measure_matmul()), quantize_warning(self.config.model)))
        run.warnings += self.fit.data.warnings
        changes, lines = fit(self.config, self.fit.data.longest, self.fit.data.widest, self.memory_limit)
        run.warnings += lines
        for change in changes:  # before the first step
            self.config = changed(self.config, *change)
            self.fit.lower(change)
        self.snapshot = self.fit.snapshot()
        return run.in_folder(preset, self._steps, self.fit.total_steps, pairs=self.files.pairs)

    def save(self) -> None:
        """Save the last whole step, unless it is saved already."""
        self.run.guard.check()
        if self.fit.is_prepared:
            self.run.checkpoints.save(self.iteration, lambda path: self.files.write(path, self.snapshot))

    def _make_smaller(self, phase: Phase, peak: int) -> None:
        """Use micro-batches of half the size from now on; `_save_lowered` makes them those of a resumed run."""
        training = self.fit
        for change in smaller_parts(training.config, phase, training.data.widest, self.memory_limit):
            self.run.alert("warning", "out_of_memory", lowered(training.config, change, phase, peak, self.memory_limit))
            training.lower(change)
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
        fit = self.fit

        def make_smaller() -> None:
            fit.restore(self.snapshot)
            self.ranks.same_state = False
            self._make_smaller("update", REFUSED)
            self._save_lowered()

        event = until_it_fits(lambda: self._led(fit.step), make_smaller)
        if event.memory_bytes > self.memory_limit:
            with contextlib.suppress(OutOfMemoryError):  # it did fit, if barely
                self._make_smaller("update", event.memory_bytes)

    def _begin(self) -> None:
        run, fit = self.run, self.fit
        loaded, problems = load_newest(run.folder, self.files.read)
        if loaded is not None:
            self.snapshot = loaded
            fit.restore(loaded)
            self.ranks.same_state = False
            run.checkpoints.saved_at = loaded.iteration
        run.begin(
            self.model,
            trainable=self.files.trainable(self.snapshot),
            prompts=len(fit.data.train),
            eval_prompts=len(fit.data.held_out),
        )
        run.report_damaged(problems)

    def _steps(self) -> str:
        """Take the remaining steps; return why there are no more."""
        self._begin()
        run, fit, every = self.run, self.fit, self.config.checkpoint.every
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
        until_it_fits(lambda: self._led(evaluate), lambda: self._make_smaller("evaluate", REFUSED))
        self.files.evaluated()

    def _led(self, work: Callable[[], Result]) -> Result:
        """Return the result of a method of `fit`, which all ranks call."""
        tokens = self.fit.config.optim.micro_batch_tokens
        return self.ranks.lead(work.__name__, work, self.fit.plain_state, self.fit.arrays, micro_batch_tokens=tokens)


def check_shares(config: StepConfig, ranks: Ranks) -> None:
    """Raise UsageError if a step does not give each rank a comparison."""
    if config.train.batch_size < ranks.size:
        raise UsageError(
            f"a step of {counted(config.train.batch_size, 'comparison')} (train.batch_size) is too small for "
            f"{ranks.size} ranks: raise train.batch_size or start fewer ranks"
        )
