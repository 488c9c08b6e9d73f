"""Run of a reward model: from preferences to a model in the run's folder, with a journal and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from trainer.config import resolve_paths, with_seed
from trainer.config.reward_model import RewardModelConfig
from trainer.control.control import Control
from trainer.control.lifecycle import closing
from trainer.errors import UsageError
from trainer.events import Event, Phase, RewardModelEvaluation, RewardModelStep, RunEnded
from trainer.files import PRIVATE, SHARED
from trainer.fitting.counted_steps import SkippedSteps, step_groups, steps_in
from trainer.fitting.phases import Phases
from trainer.fitting.step_run import Loaded, StepRun
from trainer.models.cpu.blas import blas_warning, measure_matmul
from trainer.models.loading import load_backbone, quantize_warning
from trainer.preference_data.comparisons import Comparisons, load_preferences, reward_comparisons
from trainer.preference_data.groups import fingerprint
from trainer.preferences.records import Preference
from trainer.reward_model.network import RewardModel, score_sequences
from trainer.reward_model.pair_evaluation import (
    Outcomes,
    baseline,
    fit_length_slope,
    outcomes_of,
    pair_predictions,
    report_on,
)
from trainer.reward_model.predictions import (
    HELD_OUT,
    Baseline,
    Predictions,
    RewardModelReport,
    report_from_dict,
    sorted_predictions,
    write_predictions,
)
from trainer.reward_model.reward_learner import RewardLearner
from trainer.reward_model.snapshot import Best, Scale, Snapshot, load_snapshot, save_snapshot
from trainer.runs.sinks import Sink, Sinks
from trainer.seeding import Purpose, key_for


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
        config = with_seed(resolve_paths(config, Path.cwd()))
        run = StepRun(config, resume, out, control)
        return run.train(lambda: _load(run, config, preferences), preset)


class RewardModelTraining:
    """Training step by step: normalise the untrained model, take steps, evaluate on held-out comparisons, normalise.

    It writes no files. Call `prepare` once, then `step`, each time followed by what is `due`. `snapshot` and `restore`
    may be called between steps.
    """

    def __init__(
        self,
        config: RewardModelConfig,
        backbone: nn.Module,
        data: Comparisons,
        *,
        emit: Callable[[Event], None] = lambda event: None,
        control: Control | None = None,
    ) -> None:
        self.config = config
        self.data = data
        self.emit = emit
        self.control = control or Control()
        self.model = RewardModel(backbone, config, key=key_for(config.run.seed, Purpose.ADAPTER))
        pairs = [pair for group in data.train for pair in group.pairs]
        if ties := sum(pair.is_tie for pair in pairs):
            self.model.allow_ties(ties / len(pairs))
        self.total_steps = steps_in(len(data.train), config.train)
        self.learner = RewardLearner(self.model, config, total_steps=self.total_steps)
        self.number = 0  # steps taken
        self.tokens = 0
        self.is_prepared = self.finished = False
        self.untrained: Baseline | None = None
        self.report: dict[str, Any] | None = None
        self.best: Best | None = None
        self.predictions: Predictions | None = None  # on the held-out pairs, from the latest evaluation
        self.without_better = 0
        self._fingerprint = fingerprint([*data.train, *data.held_out])
        no_scores = np.zeros(sum(len(group.sequences) for group in data.train))
        self.length_slope = fit_length_slope(outcomes_of(data.train, no_scores, 1.0).decided().longer_by)
        self._held_out_scores = no_scores  # raw, from the latest evaluation
        self._skipped = SkippedSteps("step", lambda: f"lower optim.lr ({config.optim.lr:g}) and start a new run")
        self._phases = Phases(lambda event: self.emit(event), self.control)

    @property
    def reason(self) -> str:
        """Reason why there are no more steps."""
        if self.number < self.total_steps:
            return f"the held-out log-loss got no better in {self.without_better} evaluations"
        return f"{self.number} steps done"

    @property
    def _scale(self) -> Scale:
        return Scale(self.model.mean, self.model.std, self.model.logit_std)

    def prepare(self) -> None:
        """Scale rewards to deviation 1, so that a learning rate means the same for every backbone; evaluate once."""
        self._normalize()
        self.model.logit_std = self.model.std
        if self.data.held_out:
            found, seconds = self._held_out()
            self.untrained = None if found.is_tie.all() else baseline(found)
            self._tell(self._report(found), seconds)
        self.is_prepared = True

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
        event = RewardModelStep(
            iteration=number,
            comparisons=len(groups),
            loss=found.loss,
            accuracy=found.accuracy,
            lead=found.lead,
            grad_norm=found.grad_norm,
            skipped=not found.taken,
            learning_rate=self.learner.optimizer.learning_rate(number),
            tokens=self.tokens,
            tokens_per_second=tokens / seconds,
            seconds=seconds,
            memory_bytes=mx.get_peak_memory(),
        )
        self.emit(event)
        self._skipped.after(self.number, skipped=not found.taken, emit=self.emit)
        return event

    def due(self) -> Iterator[Callable[[], object]]:
        """Yield what is due after the step just taken: `evaluate`, and `finish` if it was the last one."""
        every = self.config.eval.every
        if self.data.held_out and every and self.number % every == 0 and self.number < self.total_steps:
            yield self.evaluate
        if self.is_at_the_end():
            yield self.finish

    def evaluate(self) -> RewardModelReport:
        """Evaluate the model on the held-out comparisons, and keep its parameters if it is the best so far."""
        found, seconds = self._held_out()
        result = self._report(found)
        self._tell(result, seconds)
        self.report = result.as_dict()
        # The first evaluation always counts as best, even if no pair is decided and its log-loss is NaN.
        if self.best is None or result.log_loss < _log_loss(self.best.report):
            self.best, self.without_better = Best(self.model.parameters(), self.report, self.number), 0
        else:
            self.without_better += 1
        return result

    def is_at_the_end(self) -> bool:
        """Return whether the step just taken was the last."""
        patience = self.config.train.patience
        return self.number >= self.total_steps or bool(patience and self.without_better >= patience)

    def finish(self) -> None:
        """Restore the best parameters, and scale rewards to mean 0 and deviation 1 on the reference samples."""
        if self.data.held_out and self.number >= self.total_steps:
            self.evaluate()
        if self.config.train.patience and self.best:
            self.model.update(self.best.parameters)
            self.report = self.best.report
            if self.without_better:
                self._held_out()  # the latest scores are of other parameters
        self._normalize()
        if self.report is not None:
            iteration = self.best.iteration if self.config.train.patience and self.best else self.number
            self._predict(report_from_dict(self.report), iteration)
        self.finished = True

    def snapshot(self) -> Snapshot:
        """Return the current state."""
        return Snapshot(
            iteration=self.number,
            parameters=self.model.parameters(),
            optimizer=self.learner.optimizer.state(),
            adapter_config=self.model.adapter_config,
            scale=self._scale,
            fingerprint=self._fingerprint,
            length_slope=self.length_slope,
            tokens=self.tokens,
            untrained=asdict(self.untrained) if self.untrained else None,
            report=self.report,
            best=self.best,
            without_better=self.without_better,
            finished=self.finished,
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from `snapshot`. Raises UsageError if it was trained on other comparisons."""
        if snapshot.fingerprint != self._fingerprint:
            raise UsageError(
                f"the preferences in '{self.config.data.preferences}' are not those that this run began with: start "
                "a new run"
            )
        self.model.update(snapshot.parameters)
        self.model.mean, self.model.std, self.model.logit_std = snapshot.scale
        self.learner.optimizer.restore(snapshot.optimizer)
        self.number, self.tokens = snapshot.iteration, snapshot.tokens
        self.is_prepared, self.finished = True, snapshot.finished
        self.untrained = Baseline(**snapshot.untrained) if snapshot.untrained else None
        self.report, self.best, self.without_better = snapshot.report, snapshot.best, snapshot.without_better

    def _normalize(self) -> None:
        """Set mean and deviation from a sample of the training completions, the same one each time."""
        sequences = [sequence for group in self.data.train for sequence in group.sequences]
        count = min(self.config.train.reference, len(sequences))
        seed = [self.config.run.seed, Purpose.EVALUATION]
        chosen = sorted(np.random.default_rng(seed).choice(len(sequences), count, replace=False).tolist())
        scores = self._scores([sequences[place] for place in chosen], "score")
        self.model.mean = float(scores.mean())
        self.model.std = float(scores.std()) or 1.0  # 0 if the model scores all of them the same

    def _held_out(self) -> tuple[Outcomes, float]:
        """Score the held-out comparisons; return the outcomes and the seconds that it took."""
        started = self.control.clock()
        groups = self.data.held_out
        scores = self._scores([sequence for group in groups for sequence in group.sequences], "evaluate")
        self._held_out_scores = scores
        return outcomes_of(groups, scores, self.model.logit_std), self.control.clock() - started

    def _report(self, found: Outcomes) -> RewardModelReport:
        log_nu = self.model.log_nu
        nu = None if log_nu is None else float(log_nu)
        return report_on(found, length_slope=self.length_slope, untrained=self.untrained, log_nu=nu)

    def _scores(self, sequences: list[list[int]], phase: Phase) -> Any:
        progress = self._phases.report(self.number, phase)
        return score_sequences(self.model, sequences, self.config.optim.micro_batch_tokens, progress)

    def _predict(self, result: RewardModelReport, iteration: int) -> None:
        """Set `predictions` to the latest scores, as rewards on the current scale."""
        pairs = pair_predictions(self.data.held_out, self._held_out_scores, self._scale)
        self.predictions = sorted_predictions(pairs, result, iteration)

    def _tell(self, result: RewardModelReport, seconds: float) -> None:
        self._predict(result, self.number)
        self.emit(
            RewardModelEvaluation(
                iteration=self.number,
                pairs=result.accuracy.pairs,
                ties=result.ties.ties if result.ties else 0,
                accuracy=result.accuracy.value,
                accuracy_low=result.accuracy.low,
                accuracy_high=result.accuracy.high,
                log_loss=result.log_loss,
                calibration_error=result.calibration_error,
                length_accuracy=result.length.accuracy,
                untrained_accuracy=result.untrained.accuracy if result.untrained else math.nan,
                seconds=seconds,
            )
        )


def _load(run: StepRun, config: RewardModelConfig, preferences: Iterable[Preference] | None) -> Loaded:
    if preferences is None:
        preferences, run.warnings = load_preferences(config.data)
    model = load_backbone(config.model)
    run.warnings += filter(None, (blas_warning(measure_matmul()), quantize_warning(config.model)))
    data = reward_comparisons(preferences, model, config)
    run.warnings += data.warnings
    training = RewardModelTraining(config, model.backbone, data, emit=run.emit, control=run.control)

    def keep_predictions() -> None:
        if training.predictions is not None:
            run.guard.check()
            mode = SHARED if config.run.shared else PRIVATE
            write_predictions(run.folder.root / HELD_OUT, training.predictions, mode=mode)

    return Loaded(
        model,
        training,
        prompts=len(data.train),
        eval_prompts=len(data.held_out),
        trainable=lambda snapshot: list(snapshot.parameters.values()),
        read=load_snapshot,
        write=lambda path, snapshot: save_snapshot(path, snapshot, config),
        evaluated=keep_predictions,
    )


def _log_loss(report: dict[str, Any]) -> float:
    """Return the held-out log-loss in `report`, in nats; infinite if no pair was decided."""
    known = report["log_loss"]
    return math.inf if known is None else float(known)
