"""Accuracy of a reward model on held-out pairs, with its interval, beside baselines that know less."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len

from trainer.events import RewardModelEvaluation
from trainer.reward_model.predictions import Accuracy, CalibrationBin, RewardModelReport
from workbench.columns import fit
from workbench.kit.drawing import Line, line_of, rule
from workbench.numbers import counted, number, percent
from workbench.text import visible

_NAME = 22  # columns
_LEAST_BAR = 12


class Measure(NamedTuple):
    """An accuracy; NaN for unknown numbers."""

    name: str  # not made safe to print
    value: float
    low: float = math.nan  # Wilson's 95% interval
    high: float = math.nan

    @property
    def has_interval(self) -> bool:
        """Return whether both ends of the interval are known."""
        return math.isfinite(self.low) and math.isfinite(self.high)


class Measured(NamedTuple):
    """An evaluation after `iteration` steps, with baselines that know less than the model."""

    iteration: int
    pairs: int  # decided pairs
    model: Measure
    others: list[Measure]  # length alone, and the untrained model
    log_loss: float  # nats per pair
    calibration_error: float
    calibration: Sequence[CalibrationBin] = ()
    parts: Sequence[tuple[str, list[Measure]]] = ()  # a property of the pairs, and the accuracy for each of its values

    @property
    def beats_length(self) -> bool:
        """Return whether even the low end of the model's interval is above the accuracy of length alone."""
        return self.model.low > self.others[0].value


def of_report(report: RewardModelReport, iteration: int) -> Measured:
    """Return the measures of an evaluation from its stored report."""
    others = [Measure("length alone", report.length.accuracy)]
    if report.untrained is not None:
        others.append(Measure("untrained", report.untrained.accuracy))
    return Measured(
        iteration=iteration,
        pairs=report.accuracy.pairs,
        model=_measure(report.accuracy)._replace(name="reward model"),
        others=others,
        log_loss=report.log_loss,
        calibration_error=report.calibration_error,
        calibration=report.calibration,
        parts=[
            ("better completion is", [*map(_measure, report.by_length)]),
            ("source", [*map(_measure, report.by_source)]),
        ],
    )


def of_event(event: RewardModelEvaluation) -> Measured:
    """Return the measures of an evaluation from its journal event, which has no calibration and no parts."""
    return Measured(
        iteration=event.iteration,
        pairs=event.pairs,
        model=Measure("reward model", event.accuracy, event.accuracy_low, event.accuracy_high),
        others=[Measure("length alone", event.length_accuracy), Measure("untrained", event.untrained_accuracy)],
        log_loss=event.log_loss,
        calibration_error=event.calibration_error,
    )


def accuracy_lines(measured: Measured | None, width: int, height: int) -> list[Line]:
    """Return at most `height` lines of at most `width` columns: title, a row per measure, further numbers and parts."""
    if measured is None:
        empty = " no held-out pairs, or no evaluation yet"
        return [rule("held-out accuracy", width), [(empty[:width], "muted")]][:height]
    title = f"held-out accuracy · {counted(measured.pairs, 'pair')} · after step {measured.iteration}"
    lines = [rule(title, width), _row(measured.model, width, "series")]
    lines += [_row(one, width, "muted") for one in measured.others]
    log_loss, error = number(measured.log_loss, width=9), number(measured.calibration_error, width=9)
    lines.append([(f" log-loss {log_loss} nats   calibration error {error}"[:width], "text")])
    if math.isfinite(measured.model.low) and not measured.beats_length:
        lines.append([(" △ not clearly better than length alone: label more"[:width], "alert")])
    for heading, rows in measured.parts:
        if len(rows) > 1:
            lines += [[(f" {heading}"[:width], "muted")], *(_row(one, width, "text") for one in rows)]
    return lines[:height]


def _measure(found: Accuracy) -> Measure:
    return Measure(found.name, found.value, found.low, found.high)


def _row(one: Measure, width: int, role: str) -> Line:
    interval = f"{number(100 * one.low, 1)} to {number(100 * one.high, 1)}" if one.has_interval else ""
    text = f" {fit(visible(one.name), _NAME)} {percent(one.value, 1):>7}  {interval:<12}"
    room = width - cell_len(text) - 2
    pieces: Line = [(fit(text, width) if room < 0 else text, "strong" if role == "series" else "text")]
    return [*pieces, (" ", "text"), *_bar(one, room, role)] if room >= _LEAST_BAR else pieces


def _bar(one: Measure, width: int, role: str) -> Line:
    """Return a bar from 0 to 100%: the value ●, its interval ├─┤, and ┊ at chance."""
    cells = [(" ", "axis")] * width
    cells[(width - 1) // 2] = ("┊", "axis")
    if one.has_interval:
        first, last = (_place(end, width) for end in (one.low, one.high))
        for place in range(first, last + 1):
            cells[place] = ("├" if place == first else "┤" if place == last else "─", role)
    if math.isfinite(one.value):
        cells[_place(one.value, width)] = ("●", role)
    return line_of(cells)


def _place(share: float, width: int) -> int:
    return round(min(max(share, 0.0), 1.0) * (width - 1))
