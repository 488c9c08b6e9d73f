"""Training of a reward model, step by step. It writes no files: callers store its events and snapshots."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from trainer.config.reward_model import RewardModelConfig
from trainer.control.control import Control
from trainer.errors import UsageError
from trainer.events import Event, Phase, PhaseProgress, RewardModelEvaluation, RewardModelStep
from trainer.reward_model.batches import step_groups, steps_in
from trainer.reward_model.checkpoint import Best, Scale, Snapshot
from trainer.reward_model.comparisons import Comparisons
from trainer.reward_model.evaluation import baseline, report
from trainer.reward_model.learner import RewardLearner
from trainer.reward_model.length_baseline import fit_length_slope
from trainer.reward_model.model import RewardModel
from trainer.reward_model.outcomes import Outcomes, outcomes, pair_predictions
from trainer.reward_model.pairs import fingerprint
from trainer.reward_model.predictions import Predictions, predictions
from trainer.reward_model.report import Baseline, RewardModelReport, report_from_dict
from trainer.reward_model.scoring import score_sequences
from trainer.reward_model.skipped_steps import SkippedSteps
from trainer.seeding import Purpose, key_for


class Fitting:
    """Training loop: normalise the untrained model, take steps, evaluate on held-out comparisons, normalise the result.

    Call `prepare` once, then `step`, with `evaluate` and `finish` when they are due. `snapshot` and `restore` may be
    called between steps.
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
        self.length_slope = fit_length_slope(outcomes(data.train, no_scores, 1.0).decided().longer_by)
        self._held_out_scores = no_scores  # raw, from the latest evaluation
        self._skipped = SkippedSteps(config.optim.lr)

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
        found = self.learner.train(groups, number, self._progress(number, "update"))
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
        self._skipped.after(self.number, taken=found.taken, emit=self.emit)
        return event

    def is_evaluation_due(self) -> bool:
        """Return whether to evaluate on the held-out comparisons after the step just taken."""
        every = self.config.eval.every
        return bool(self.data.held_out and every and self.number % every == 0 and self.number < self.total_steps)

    def evaluate(self) -> RewardModelReport:
        """Evaluate the model on the held-out comparisons, and keep its parameters if it is the best so far."""
        found, seconds = self._held_out()
        result = self._report(found)
        self._tell(result, seconds)
        self.report = result.as_dict()
        # The first evaluation always counts as best, even if no pair is decided and its log-loss is NaN.
        if self.best is None or result.log_loss < (self.best.report["log_loss"] or math.inf):
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
        return outcomes(groups, scores, self.model.logit_std), self.control.clock() - started

    def _report(self, found: Outcomes) -> RewardModelReport:
        log_nu = self.model.log_nu
        nu = None if log_nu is None else float(log_nu)
        return report(found, length_slope=self.length_slope, untrained=self.untrained, log_nu=nu)

    def _scores(self, sequences: list[list[int]], phase: Phase) -> Any:
        progress = self._progress(self.number, phase)
        return score_sequences(self.model, sequences, self.config.optim.micro_batch_tokens, progress)

    def _progress(self, number: int, phase: Phase) -> Callable[[int, int], None]:
        def progress(done: int, total: int) -> None:
            self.control.check()
            self.emit(PhaseProgress(iteration=number, phase=phase, done=done, total=total))

        progress(0, 1)
        return progress

    def _predict(self, result: RewardModelReport, iteration: int) -> None:
        """Set `predictions` to the latest scores, as rewards on the current scale."""
        pairs = pair_predictions(self.data.held_out, self._held_out_scores, self._scale)
        self.predictions = predictions(pairs, result, iteration)

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
