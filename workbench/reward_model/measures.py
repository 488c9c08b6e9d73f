"""Measures of a reward model on held-out pairs, from a report or from the event of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from trainer.events import RewardModelEvaluation
from trainer.reward_model.report import Accuracy, CalibrationBin, RewardModelReport


class Measure(NamedTuple):
    """An accuracy; NaN for unknown numbers."""

    name: str  # not made safe to print
    value: float
    low: float = math.nan  # Wilson's 95% interval
    high: float = math.nan
    pairs: int | None = None


class Measured(NamedTuple):
    """An evaluation after `iteration` steps, with baselines that know less than the model."""

    iteration: int
    pairs: int  # decided pairs
    model: Measure
    others: list[Measure]  # length alone, and the untrained model
    log_loss: float  # nats per pair
    calibration_error: float
    calibration: list[CalibrationBin]
    parts: list[tuple[str, list[Measure]]]  # a property of the pairs, and the accuracy for each of its values

    @property
    def beats_length(self) -> bool:
        """Whether even the low end of the model's interval is above the accuracy of length alone."""
        return self.model.low > self.others[0].value


def of_report(report: RewardModelReport, iteration: int) -> Measured:
    """Return the measures of an evaluation from its stored report."""
    whole = report.accuracy
    others = [Measure("length alone", report.length.accuracy)]
    if report.untrained is not None:
        others.append(Measure("untrained", report.untrained.accuracy))
    return Measured(
        iteration=iteration,
        pairs=whole.pairs,
        model=_measure(whole, "reward model"),
        others=others,
        log_loss=report.log_loss,
        calibration_error=report.calibration_error,
        calibration=report.calibration,
        parts=[("the better one is", _measures(report.by_length)), ("source", _measures(report.by_source))],
    )


def of_event(event: RewardModelEvaluation) -> Measured:
    """Return the measures of an evaluation from its journal event, which has no calibration and no parts."""
    return Measured(
        iteration=event.iteration,
        pairs=event.pairs,
        model=Measure("reward model", event.accuracy, event.accuracy_low, event.accuracy_high, event.pairs),
        others=[Measure("length alone", event.length_accuracy), Measure("untrained", event.untrained_accuracy)],
        log_loss=event.log_loss,
        calibration_error=event.calibration_error,
        calibration=[],
        parts=[],
    )


def _measures(found: Sequence[Accuracy]) -> list[Measure]:
    return [_measure(one, one.name) for one in found]


def _measure(found: Accuracy, name: str) -> Measure:
    return Measure(name, found.value, found.low, found.high, found.pairs)
