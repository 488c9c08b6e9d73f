"""Run of a reward model or of DPO, which counts steps: the loop, evaluations and checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import mlx.core as mx

from trainer.config.dpo import DPOConfig
from trainer.config.reward_model import RewardModelConfig
from trainer.control.control import Control, Interrupted
from trainer.control.lifecycle import RunUnderWay
from trainer.errors import OutOfMemoryError
from trainer.events import Phase, PhaseProgress, RunEnded, SettingChanged
from trainer.fitting.memory_limit import (
    REFUSED,
    Smaller,
    is_on_gpu,
    lowered,
    set_memory_limit,
    smaller_micro_batch,
    too_large,
    until_it_fits,
)
from trainer.fitting.step_training import StepTraining
from trainer.memory.estimate import clear_footprint
from trainer.memory.savings import changed
from trainer.models.backbone import LoadedModel, quantize_warning
from trainer.models.cpu.blas import blas_warning, measure_matmul
from trainer.runs.checkpoint_files import load_newest
from trainer.runs.folder import write_config
from trainer.runs.sinks import Sinks


class StepSnapshot(Protocol):
    """State after a whole step."""

    iteration: int


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
