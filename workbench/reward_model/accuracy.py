"""Accuracy of a reward model on held-out pairs, with its interval, beside baselines that know less."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from rich.cells import cell_len

from trainer.events import RewardModelEvaluation
from trainer.plurals import counted
from trainer.reward_model.predictions import Accuracy, Baseline, RewardModelReport
from workbench.columns import fit, fit_start
from workbench.kit.drawing import rule
from workbench.kit.lines import Line, line_of
from workbench.numbers import number, percent
from workbench.text import visible

_NAME = 22  # columns
_LEAST_BAR = 12


def report_of(event: RewardModelEvaluation) -> RewardModelReport:
    """Return the report of an evaluation as far as its journal event has it: without calibration bins and parts."""
    return RewardModelReport(
        accuracy=Accuracy("all", event.pairs, event.accuracy, event.accuracy_low, event.accuracy_high),
        log_loss=event.log_loss,
        calibration_error=event.calibration_error,
        calibration=[],
        by_length=[],
        by_source=[],
        ties=None,
        length=Baseline(event.length_accuracy, math.nan),
        untrained=Baseline(event.untrained_accuracy, math.nan),
    )


def accuracy_lines(report: RewardModelReport | None, iteration: int, width: int, height: int) -> list[Line]:
    """Return at most `height` lines of at most `width` columns: title, a row per accuracy, further numbers and parts.

    report: of the evaluation after `iteration` steps; None before the first one.
    """
    if report is None:
        empty = " no held-out pairs, or no evaluation yet"
        return [rule("held-out accuracy", width), [(fit_start(empty, width), "muted")]][:height]
    model = report.accuracy
    title = f"held-out accuracy · {counted(model.pairs, 'pair')} · after step {iteration}"
    lines = [rule(title, width), _row(replace(model, name="reward model"), width, "series")]
    for name, baseline in (("length alone", report.length), ("untrained", report.untrained)):
        if baseline is not None:
            lines.append(_row(Accuracy(name, model.pairs, baseline.accuracy, math.nan, math.nan), width, "muted"))
    log_loss, error = number(report.log_loss, width=9), number(report.calibration_error, width=9)
    lines.append([(fit_start(f" log-loss {log_loss} nats   calibration error {error}", width), "text")])
    lines += [[(fit_start(text, width), role)] for text, role in _beside_length(report)]
    for heading, parts in (("better completion is", report.by_length), ("source", report.by_source)):
        if len(parts) > 1:
            lines += [[(fit_start(f" {heading}", width), "muted")], *(_row(one, width, "text") for one in parts)]
    return lines[:height]


def _beside_length(report: RewardModelReport) -> Iterator[tuple[str, str]]:
    """Yield the line about model and length, with its role: one at most, because a small pane has room for one."""
    if (ahead := report.over_length) is not None:
        points, low, high = (number(100 * share, 1) for share in (ahead.value, ahead.low, ahead.high))
        text = f"difference from length alone: {points} points, {low} to {high}"
        yield (f" {text}", "text") if ahead.low > 0 else (f" △ {text}: label more", "alert")
    elif math.isfinite(report.accuracy.low) and not report.accuracy.low > report.length.accuracy:  # also if unknown
        yield " △ not clearly better than length alone: label more", "alert"


def _row(one: Accuracy, width: int, role: str) -> Line:
    interval = f"{number(100 * one.low, 1)} to {number(100 * one.high, 1)}" if _has_interval(one) else ""
    text = f" {fit(visible(one.name), _NAME)} {percent(one.value, 1):>7}  {interval:<12}"
    room = width - cell_len(text) - 2
    pieces: Line = [(fit(text, width) if room < 0 else text, "strong" if role == "series" else "text")]
    return [*pieces, (" ", "text"), *_bar(one, room, role)] if room >= _LEAST_BAR else pieces


def _bar(one: Accuracy, width: int, role: str) -> Line:
    """Return a bar from 0 to 100%: the value ●, its interval ├─┤, and ┊ at chance."""
    cells = [(" ", "axis")] * width
    cells[(width - 1) // 2] = ("┊", "axis")
    if _has_interval(one):
        first, last = (_place(end, width) for end in (one.low, one.high))
        for place in range(first, last + 1):
            cells[place] = ("├" if place == first else "┤" if place == last else "─", role)
    if math.isfinite(one.value):
        cells[_place(one.value, width)] = ("●", role)
    return line_of(cells)


def _has_interval(one: Accuracy) -> bool:
    return math.isfinite(one.low) and math.isfinite(one.high)


def _place(share: float, width: int) -> int:
    return round(min(max(share, 0.0), 1.0) * (width - 1))
