"""Verdict on a reward model in words: whether it is better than guessing and than length alone, and what would tell."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

from trainer.confidence import Z95, Interval
from trainer.errors import StorageError, counted
from trainer.events import RewardModelEvaluation
from trainer.reward_model.predictions import (
    HELD_OUT,
    Accuracy,
    Baseline,
    Predictions,
    RewardModelReport,
    read_predictions,
)
from workbench.run.view import RunView
from workbench.text import number, percent

_LEADS = 0.1, 0.2  # a smaller lead is not worth so many labels, and a larger one of few pairs is luck
_UNKNOWN = Accuracy("all", 0, math.nan, math.nan, math.nan)
NONE_YET = RewardModelReport(_UNKNOWN, math.nan, math.nan, [], [], [], None, Baseline(math.nan, math.nan), None)


def read_newest(folder: Path) -> Predictions | None:
    """Read the report of a run's newest evaluation, with one of its pairs; None if there is none to read."""
    with contextlib.suppress(StorageError):
        return read_predictions(folder / HELD_OUT, 1)
    return None


def newest_report(view: RunView, predictions: Predictions | None) -> tuple[RewardModelReport, int]:
    """Return the newest report, that of the pairs or else of the journal, and after how many steps; else `NONE_YET`."""
    if predictions is not None:
        return predictions.report, predictions.iteration
    return (report_of(view.held_out[-1]), view.held_out[-1].iteration) if view.held_out else (NONE_YET, 0)


def report_of(event: RewardModelEvaluation) -> RewardModelReport:
    """Return the report of an evaluation as far as its journal event has it: without calibration bins and parts."""
    accuracy = Accuracy("all", event.pairs, event.accuracy, event.accuracy_low, event.accuracy_high)
    length, untrained = (Baseline(share, math.nan) for share in (event.length_accuracy, event.untrained_accuracy))
    return RewardModelReport(accuracy, event.log_loss, event.calibration_error, [], [], [], None, length, untrained)


def verdict(view: RunView, predictions: Predictions | None) -> str:
    """Return a sentence or two: ✓ if the model is clearly better than guessing and than length alone, else ⚠.

    The half-width m of a 95% interval falls with the root of the number of pairs n, so that the interval of a lead d
    leaves out 0 from about n (m / d)^2 pairs on. d is the lead as it is, but 10 points at least and 20 at most. With
    fewer pairs the verdict is that there are too few, and it asks for as many labels as hold out the rest at the run's
    own rate. Over guessing, m = z / (2 sqrt n), where Wilson's interval begins to leave out 50%; over length alone, it
    is that of the paired difference, or of the accuracy where only the journal is known. m is taken below the lead.
    """
    (report, _), started = newest_report(view, predictions), view.started
    if report is NONE_YET and view.state != "done" and started is not None and started.eval_prompts:
        return "No verdict before the first evaluation."
    if report.accuracy.pairs < 1:
        return "⚠ No pairs were held out: nothing says how good it is."
    own, labels = report.accuracy, started.prompts + started.eval_prompts if started else report.accuracy.pairs
    pairs = counted(own.pairs, "held-out pair")
    right = f"Right on {percent(own.value)} of {pairs} ({number(100 * own.low, 0)} to {percent(own.high)})"
    guessing, length = Interval(own.value - 0.5, own.low - 0.5, own.high - 0.5), report.length.accuracy
    ahead = report.over_length or Interval(own.value - length, own.low - length, math.nan)  # then never worse
    for name, (lead, low, high), half in (
        ("guessing", guessing, Z95 / (2 * math.sqrt(own.pairs))),
        ("length alone", ahead, min(ahead.value - ahead.low, 1.0)),
    ):
        missing = own.pairs * (half / min(max(lead, _LEADS[0]), _LEADS[1])) ** 2 - own.pairs
        if low > 0:
            continue
        if high < 0 or not missing > 0:  # also if unknown
            return f"⚠ {right}, {'worse' if high < 0 else 'no better'} than {name}."
        few = f"{pairs}: too few to tell." if name == "guessing" else f"{right}: too few to tell it from {name}."
        return f"⚠ {few} Label {10 * math.ceil(missing * labels / own.pairs / 10):,} more."
    return f"✓ {right}, better than length alone."
