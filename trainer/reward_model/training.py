"""Run of a reward model: from preferences to a model in the run's folder, with a journal and checkpoints."""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from trainer.config.reward_model import RewardModelConfig, resolve_reward_model_paths
from trainer.control.control import Control
from trainer.control.lifecycle import RunUnderWay, closing
from trainer.events import CheckpointSaved, RunEnded
from trainer.files import PRIVATE, SHARED
from trainer.models.cpu.blas import blas_warning, measure_matmul
from trainer.models.loading import LoadedModel, load_backbone, quantize_warning
from trainer.preferences.records import Preference
from trainer.reward_model.checkpoint import Snapshot, load_snapshot, save_snapshot
from trainer.reward_model.comparisons import Comparisons, comparisons
from trainer.reward_model.fitting import Fitting
from trainer.reward_model.predictions import HELD_OUT, write_predictions
from trainer.reward_model.sources import load_preferences
from trainer.runs.checkpoint_files import load_newest
from trainer.runs.checkpoint_index import prune_checkpoints
from trainer.runs.folder import RunFolder, check_name_is_free, create_run, open_to_train, write_config
from trainer.runs.sinks import Sink, Sinks
from trainer.runs.trackers import build_trackers


def train_reward_model(
    config: RewardModelConfig,
    *,
    preferences: Iterable[Preference] | None = None,
    resume: Path | None = None,
    preset: str = "reward-model",
    sinks: Sequence[Sink] = (),
    control: Control | None = None,
) -> RunEnded:
    """Train as `config` says, entirely on the calling thread, and return how the run ended.

    preferences: used instead of `config.data.preferences`. resume, preset, sinks, control: as for
    `trainer.session.training.train`. Raises TrainerError for what a user can fix; the journal then says why.
    """
    out, control = Sinks(sinks), control or Control()
    with closing(out, control):
        return _Run(config, resume, out, control).train(preferences, preset)


class _Run(RunUnderWay):
    """An active run: its model, the loop over steps, and its checkpoints."""

    fitting: Fitting
    snapshot: Snapshot

    def __init__(self, config: RewardModelConfig, resume: Path | None, out: Sinks, control: Control) -> None:
        super().__init__(resume, out, control)
        config = resolve_reward_model_paths(config, Path.cwd())
        seed = config.run.seed if config.run.seed >= 0 else secrets.randbelow(2**32)
        self.config = config.model_copy(update={"run": config.run.model_copy(update={"seed": seed})})
        self.saved_at = -1

    @property
    def iteration(self) -> int:
        """Number of the last complete step."""
        return self.snapshot.iteration

    def train(self, preferences: Iterable[Preference] | None, preset: str) -> RunEnded:
        """Load everything, then create or open the run and train. A failed start leaves nothing behind."""
        self.state("loading")
        if self.resume:
            self.folder = open_to_train(self.resume, Path(self.config.run.dir))
        else:
            check_name_is_free(self.config)
        if preferences is None:
            preferences, self.warnings = load_preferences(self.config.data)
        model = load_backbone(self.config.model)
        self.warnings += filter(None, (blas_warning(measure_matmul()), quantize_warning(self.config.model)))
        data = comparisons(preferences, model, self.config)
        self.warnings += data.warnings
        self.fitting = Fitting(self.config, model.backbone, data, emit=self.emit, control=self.control)
        self.snapshot = self.fitting.snapshot()
        if not self.resume:
            self.folder = create_run(self.config, preset)
        with self.folder.lock() as self.lock:
            if self.resume:
                write_config(self.folder, self.config)  # the settings that are active from here on
            names, settings = self.config.run.trackers, self.config.model_dump()
            trackers = functools.partial(build_trackers, names, self.folder.name, self.folder.root, settings)
            self.open(trackers, shared=self.config.run.shared)
            return self.guarded(lambda: self._steps(model, data))

    def save(self) -> None:
        """Save the last complete step, unless it is saved already."""
        self.guard.check()
        if self.snapshot.iteration == self.saved_at or not self.fitting.is_prepared:
            return
        self.state("saving")
        started = time.perf_counter()
        path = self.folder.checkpoint(self.snapshot.iteration)
        save_snapshot(path, self.snapshot, self.config)
        self.saved_at = self.snapshot.iteration
        prune_checkpoints(self.folder, self.config.checkpoint.keep)
        where, seconds = str(path.relative_to(self.folder.root)), time.perf_counter() - started
        self.emit(CheckpointSaved(iteration=self.saved_at, path=where, seconds=seconds))

    def move_to(self, folder: RunFolder) -> None:
        """Use `folder` as the run's folder from here on."""
        self.folder, self.saved_at = folder, -1
        write_config(folder, self.config)

    def _keep_predictions(self) -> None:
        if self.fitting.predictions is not None:
            self.guard.check()
            mode = SHARED if self.config.run.shared else PRIVATE
            write_predictions(self.folder.root / HELD_OUT, self.fitting.predictions, mode=mode)

    def _begin(self, model: LoadedModel, data: Comparisons) -> None:
        loaded, problems = load_newest(self.folder, load_snapshot)
        if loaded is not None:
            self.snapshot = loaded
            self.fitting.restore(self.snapshot)
            self.saved_at = self.snapshot.iteration
        self.begin(
            self.config,
            model,
            trainable=list(self.snapshot.parameters.values()),
            prompts=len(data.train),
            eval_prompts=len(data.held_out),
            iterations=self.fitting.total_steps,
            kind=self.config.kind,
        )
        self.tell_damaged(problems)

    def _steps(self, model: LoadedModel, data: Comparisons) -> str:
        """Take the remaining steps; return why there are no more."""
        self._begin(model, data)
        fitting, every = self.fitting, self.config.checkpoint.every
        if not fitting.is_prepared:
            self.state("evaluating")
            fitting.prepare()
            self._keep_predictions()
            self.snapshot = fitting.snapshot()
            if every:
                self.save()
        while not fitting.finished:
            self.state("training")
            self.control.between_iterations()
            fitting.step()
            if fitting.is_evaluation_due():
                self.state("evaluating")
                fitting.evaluate()
                self._keep_predictions()
            if fitting.is_at_the_end():
                self.state("evaluating")
                fitting.finish()
                self._keep_predictions()
            # Not earlier: a run that ends during its evaluation then repeats both the step and the evaluation.
            self.snapshot = fitting.snapshot()
            if every and self.snapshot.iteration % every == 0:
                self.save()
        return fitting.reason
