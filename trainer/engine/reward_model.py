"""A reward model as a run trains it: from preferences to a model, evaluated on held-out pairs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from trainer.arrays import Purpose, key_for
from trainer.config.pairs import RewardModelConfig
from trainer.engine.trainable import StepTraining
from trainer.errors import counted
from trainer.events import Alert, Phase, RewardModelEvaluation
from trainer.files import PRIVATE, SHARED
from trainer.models.adapters import Parameters
from trainer.models.backbone import ScalarHead
from trainer.models.forward import check_grad_checkpoint
from trainer.pairs.comparisons import Comparisons, load_material, reward_comparisons
from trainer.pairs.groups import Group, changed_preferences, sequences_of
from trainer.reward_model.network import Read, RewardModel, Scale, Scores, score_sequences
from trainer.reward_model.pair_evaluation import (
    Outcomes,
    baseline,
    length_slope_of,
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
from trainer.reward_model.reward_learner import MOST_COMPARISONS, RewardLearner, check_enough, differences, fit_head
from trainer.reward_model.snapshot import RewardModelSnapshot, load_snapshot, save_snapshot
from trainer.runs.folder import RunFolder


class RewardModelTraining(StepTraining):
    """A reward model under training: normalise, take steps, evaluate on held-out comparisons, normalise again.

    See `Trainable`.
    """

    config: RewardModelConfig

    def __init__(self, config: RewardModelConfig, *arguments: Any, **options: Any) -> None:
        super().__init__(config, *arguments, **options)
        self._begun_with = config
        self._is_finished = False
        self.untrained: Baseline | None = None
        self.evaluation: dict[str, Any] | None = None
        self.best: Parameters | None = None  # those of the best evaluation, after `best_iteration` steps
        self.best_report: dict[str, Any] | None = None
        self.best_iteration = 0
        self.predictions: Predictions | None = None  # on the held-out pairs, from the latest evaluation
        self._predicted: Predictions | None = None  # those that are not written yet
        self.without_better = 0
        self._held_out_scores = np.zeros(0)  # raw, from the latest evaluation

    def load(self, folder: RunFolder | None) -> Sequence[Any]:
        """Read preferences and model; return the hash of the preferences."""
        self.model, self.data, warnings = load_material(self.config, self._preferences, reward_comparisons)
        self.warnings += [*warnings, *self.data.warnings]
        return [self.data.fingerprint]

    def build(self) -> None:
        """Put adapter and head on the model."""
        self.build_on(self.config, self.model.backbone, self.data, self.model.head)

    def build_on(
        self, config: RewardModelConfig, backbone: nn.Module, data: Comparisons, head: ScalarHead | None = None
    ) -> Self:
        """Build what trains on a loaded backbone and comparisons; return this object."""
        self.use_data(config, data)
        if config.train.head == "fitted":
            check_enough(data.train)
        ties = Counter(pair.is_tie for group in data.train for pair in group.pairs)
        key, share = key_for(config.run.seed, Purpose.ADAPTER), ties[True] / ties.total()
        self.scorer = RewardModel(backbone, config, key=key, head=head, tie_share=share)
        if config.optim.grad_checkpoint:
            with self.scorer.on():
                check_grad_checkpoint(backbone)
        self.trainable = sum(array.size for array in self.scorer.parameters().values())
        self.learner = RewardLearner(self.scorer, config, total_steps=self.total, ranks=self.ranks)
        self._data_fingerprint = data.fingerprint
        self.length_slope = length_slope_of(data.train)
        return self

    def leave(self, folder: RunFolder) -> None:
        """Write the predictions of an evaluation."""
        if self._predicted is not None:
            mode = SHARED if self.config.run.shared else PRIVATE
            write_predictions(folder.root / HELD_OUT, self._predicted, mode=mode)
            self._predicted = None

    def ending(self) -> str:
        """Return why there are no more steps, if `finish` was called; such a run cannot be resumed with more."""
        if not self._is_finished:
            return ""
        if self.number < self.total:
            return f"held-out log-loss did not improve in {counted(self.without_better, 'evaluation')}"
        return f"{counted(self.number, 'step')} done"

    def prepare(self) -> None:
        """Scale rewards to deviation 1, so that a learning rate means the same for every backbone; evaluate once."""
        self._normalize()
        self.scorer.scale = self.scorer.scale._replace(logit_std=self.scorer.scale.std)
        found = self._held_out() if self.data.held_out else None
        if found is not None:
            outcomes = found[0]
            self.untrained = None if outcomes.is_tie.all() else baseline(outcomes.decided().leads)
        if self.config.train.head == "fitted":
            self._fit_head()
            found = self._held_out() if found is not None else None
        if found is not None:
            self._report(*found)
        self.is_prepared = True

    def due(self) -> Iterator[Callable[[], object]]:
        """Yield what is due after the step just taken: `evaluate`, and `finish` if it was the last one."""
        every = self.config.eval.every
        if self.data.held_out and every and self.number % every == 0 and self.number < self.total:
            yield self.evaluate
        patience = self.config.train.patience
        if self.number >= self.total or (patience and self.without_better >= patience):
            yield self.finish

    def evaluate(self) -> None:
        """Evaluate the model on the held-out comparisons, and keep its parameters if it is the best so far."""
        result = self._report(*self._held_out())
        self.evaluation = result.as_dict()
        # The first evaluation always counts as best, even if no pair is decided and its log-loss is NaN.
        least = self.best_report["log_loss"] if self.best_report is not None else None
        if self.best_report is None or result.log_loss < (math.inf if least is None else least):
            self.best, self.best_report, self.best_iteration = self.scorer.parameters(), self.evaluation, self.number
            self.without_better = 0
        else:
            self.without_better += 1

    def finish(self) -> None:
        """Restore the best parameters, and scale rewards to mean 0 and deviation 1 on the reference samples."""
        if self.data.held_out and self.number >= self.total:
            self.evaluate()
        iteration = self.number
        if self.config.train.patience and self.best:
            self.scorer.update(self.best)
            self.evaluation, iteration = self.best_report, self.best_iteration
            if self.without_better:
                self._held_out()  # the latest scores are of other parameters
        self._normalize()
        if self.evaluation is not None:
            self._predict(report_from_dict(self.evaluation), iteration)
        self._is_finished = True

    def snapshot(self) -> RewardModelSnapshot:
        """Return the current state."""
        return RewardModelSnapshot(
            iteration=self.number,
            parameters=self.scorer.parameters(),
            optimizer=self.learner.optimizer.state(),
            adapter_config=self.scorer.adapter_config,
            scale=self.scorer.scale,
            fingerprint=self._data_fingerprint,
            length_slope=self.length_slope,
            tokens=self.tokens,
            untrained=asdict(self.untrained) if self.untrained else None,
            report=self.evaluation,
            best=self.best,
            best_report=self.best_report,
            best_iteration=self.best_iteration,
            without_better=self.without_better,
            finished=self._is_finished,
        )

    def restore(self, snapshot: RewardModelSnapshot) -> None:
        """Continue from `snapshot`. Raises UsageError if it was trained on other comparisons."""
        if snapshot.fingerprint != self._data_fingerprint:
            raise changed_preferences(self.config.data)
        self.scorer.update(snapshot.parameters)
        self.scorer.scale = Scale(*snapshot.scale)  # a list from another rank
        self.learner.optimizer.restore(snapshot.optimizer)
        self.number, self.tokens = snapshot.iteration, snapshot.tokens
        self.is_prepared, self._is_finished = True, snapshot.finished
        self.untrained = Baseline(**snapshot.untrained) if snapshot.untrained else None
        self.evaluation, self.without_better = snapshot.report, snapshot.without_better
        self.best_report, self.best_iteration = snapshot.best_report, snapshot.best_iteration
        self.best = snapshot.best if self.best_report is not None else None

    def write(self, folder: Path, snapshot: RewardModelSnapshot) -> None:
        """Write a checkpoint."""
        save_snapshot(folder, snapshot, self._begun_with)

    def read(self, folder: Path) -> RewardModelSnapshot:
        """Read a checkpoint."""
        return load_snapshot(folder)

    def _fit_head(self) -> None:
        """Fit the head to the training comparisons, and scale the rewards again, since they have changed."""
        seed = [self.config.run.seed, Purpose.FOLDS]
        groups: Sequence[Group] = self.data.train
        if len(groups) > MOST_COMPARISONS:
            chosen = np.random.default_rng(seed).choice(len(groups), MOST_COMPARISONS, replace=False)
            groups = [groups[place] for place in np.sort(chosen).tolist()]
        states = self._read(self.scorer.states, *sequences_of(groups), "score")
        found = differences(groups, states, self.config.train.margin)
        head = fit_head(found, seed, parts=len(self.scorer.weights))
        self.scorer.replace_head(head.weight)
        self._normalize()
        message = (
            f"the head was fitted to {counted(head.pairs, 'pair')}: {100 * head.accuracy:.1f}% right in the "
            f"cross-validation, with a penalty of {head.penalty:g}"
        )
        self.hooks.report(Alert(iteration=0, level="info", code="head_fitted", message=message))

    def _normalize(self) -> None:
        """Set mean and deviation from a sample of the training completions, the same one each time."""
        sequences, starts = sequences_of(self.data.train)
        count = min(self.config.train.reference, len(sequences))
        seed = [self.config.run.seed, Purpose.EVALUATION]
        chosen = np.sort(np.random.default_rng(seed).choice(len(sequences), count, replace=False)).tolist()
        reference = [sequences[row] for row in chosen], [starts[row] for row in chosen]
        scores = self._read(self.scorer.scores, *reference, "score")
        std = float(scores.std()) or 1.0  # 0 if the model scores all of them the same
        self.scorer.scale = self.scorer.scale._replace(mean=float(scores.mean()), std=std)

    def _held_out(self) -> tuple[Outcomes, float, int]:
        """Score the held-out comparisons; return the outcomes, and what it cost: seconds, and bytes of memory."""
        started = self.phases.clock()
        mx.reset_peak_memory()
        groups = self.data.held_out
        scores = self._read(self.scorer.scores, *sequences_of(groups), "evaluate")
        self._held_out_scores = scores
        outcomes = outcomes_of(groups, scores, self.scorer.scale.logit_std)
        return outcomes, self.phases.clock() - started, mx.get_peak_memory()

    def _read(self, read: Read, sequences: Sequence[Sequence[int]], starts: Sequence[int], phase: Phase) -> Scores:
        """Return what `read` finds in `sequences`, a share of them on each rank: [N], or [N, D] of states."""
        progress, budget = self.phases.start(self.number, phase), self.config.optim.micro_batch_tokens

        def score(share: list[int]) -> Scores:
            own, begins = [sequences[row] for row in share], [starts[row] for row in share]
            return score_sequences(read, own, budget, progress, begins)

        return self.ranks.by_row([len(sequence) for sequence in sequences], score)

    def _predict(self, result: RewardModelReport, iteration: int) -> None:
        """Set `predictions` to the latest scores, as rewards on the current scale."""
        pairs = pair_predictions(self.data.held_out, self._held_out_scores, self.scorer.scale)
        self.predictions = self._predicted = sorted_predictions(pairs, result, iteration)

    def _report(self, found: Outcomes, seconds: float, memory: int) -> RewardModelReport:
        """Report on the outcomes of the latest scores, and what they cost: seconds, and bytes of memory."""
        log_nu = self.scorer.log_nu
        result = report_on(found, length_slope=self.length_slope, untrained=self.untrained, log_nu=log_nu)
        self._predict(result, self.number)
        self.hooks.report(
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
                memory_bytes=memory,
            )
        )
        return result
