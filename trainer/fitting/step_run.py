"""Run of a reward model or by DPO, which counts steps: the loop over them, evaluations and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx

from trainer.config.dpo import DPOConfig
from trainer.config.reward_model import RewardModelConfig
from trainer.control.control import Control
from trainer.control.lifecycle import RunUnderWay
from trainer.events import RunEnded
from trainer.models.loading import LoadedModel
from trainer.runs.checkpoint_files import CheckpointWriter, load_newest
from trainer.runs.folder import RunFolder, write_config
from trainer.runs.sinks import Sinks


class Loaded(NamedTuple):
    """Parts of a run, once they are loaded.

    fit: what is trained step by step, and writes no files. It has `number`, `total_steps`, `is_prepared`, `finished`
    and `reason` (why there are no more steps), `prepare` (called once, before the first step), `step`, `due` (yields
    the evaluations to run after a step), `snapshot` and `restore`. A snapshot has its step as `iteration`.
    """

    model: LoadedModel
    fit: Any
    prompts: int
    eval_prompts: int
    trainable: Callable[[Any], Sequence[mx.array]]  # of a snapshot
    read: Callable[[Path], Any]  # a snapshot from a checkpoint's folder
    write: Callable[[Path, Any], None]
    pairs: str = ""  # fingerprint of the comparisons, for the folder of a new run
    evaluated: Callable[[], None] = lambda: None  # called after each evaluation


class StepRun(RunUnderWay):
    """A run that counts steps, from its first event to its last."""

    parts: Loaded
    snapshot: Any
    checkpoints: CheckpointWriter

    def __init__(
        self, config: RewardModelConfig | DPOConfig, resume: Path | None, out: Sinks, control: Control
    ) -> None:
        super().__init__(resume, out, control)
        self.config = config

    @property
    def iteration(self) -> int:
        """Number of the last whole step."""
        number: int = self.snapshot.iteration
        return number

    def train(self, load: Callable[[], Loaded], preset: str) -> RunEnded:
        """Load everything, then create or open the run and train. A failed start leaves nothing behind."""
        self.find_folder(self.config)
        self.parts = load()
        self.snapshot = self.parts.fit.snapshot()
        return self.in_folder(self.config, preset, self._steps, pairs=self.parts.pairs)

    def save(self) -> None:
        """Save the last whole step, unless it is saved already."""
        self.guard.check()
        if self.parts.fit.is_prepared:
            self.checkpoints.save(self.iteration, lambda path: self.parts.write(path, self.snapshot))

    def move_to(self, folder: RunFolder) -> None:
        """Use `folder` as the run's folder from now on."""
        self.folder = folder
        self.checkpoints.move_to(folder)
        write_config(folder, self.config)

    def _begin(self) -> None:
        parts, fit = self.parts, self.parts.fit
        self.checkpoints = CheckpointWriter(self.folder, self.config.checkpoint.keep, self.emit, self.guard.check)
        loaded, problems = load_newest(self.folder, parts.read)
        if loaded is not None:
            self.snapshot = loaded
            fit.restore(loaded)
            self.checkpoints.saved_at = loaded.iteration
        self.begin(
            self.config,
            parts.model,
            trainable=parts.trainable(self.snapshot),
            prompts=parts.prompts,
            eval_prompts=parts.eval_prompts,
            iterations=fit.total_steps,
            kind=self.config.kind,
        )
        self.tell_damaged(problems)

    def _steps(self) -> str:
        """Take the remaining steps; return why there are no more."""
        self._begin()
        fit, every = self.parts.fit, self.config.checkpoint.every
        if not fit.is_prepared:
            self._evaluate(fit.prepare)
            self.snapshot = fit.snapshot()
            if every:
                self.save()
        while not fit.finished:
            self.state("training")
            self.control.between_iterations()
            fit.step()
            for evaluate in fit.due():
                self._evaluate(evaluate)
            # Not earlier: a run that ends during its evaluation then repeats both the step and the evaluation.
            self.snapshot = fit.snapshot()
            if every and self.iteration % every == 0:
                self.save()
        reason: str = fit.reason
        return reason

    def _evaluate(self, evaluate: Callable[[], object]) -> None:
        self.state("evaluating")
        evaluate()
        self.parts.evaluated()
