"""Charts of a reward-model run, side by side or one below the other, and its accuracy beside simpler baselines."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from rich.cells import cell_len

from trainer.errors import counted
from trainer.events import RewardModelEvaluation
from trainer.reward_model.predictions import Accuracy, Baseline, CalibrationBin, Predictions, RewardModelReport
from workbench.kit.axes import Axis, moving_average
from workbench.kit.drawing import Drawn, rule
from workbench.kit.glyphs import DOTS_ACROSS, Canvas, bar_lines, calibration_bars, row_of, with_axis
from workbench.run.view import RunView
from workbench.text import Line, beside, fit, fit_start, line_of, number, percent, visible

_NAME = 22  # columns
_LEAST_BAR = 12
_HELD_OUT, _INTERVAL = "◆", "│"
_LABELS = 7  # columns
_CALIBRATION_BINS = 10  # from 0.5 to 1
_REWARD_LABELS = 9  # columns
_MOST_BINS = 60
_ALL = (96, 30)  # columns and lines of the smallest pane that shows all charts
_GUTTER = 2  # columns between two charts


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
    if (ahead := report.over_length) is not None:
        points, low, high = (number(100 * share, 1) for share in (ahead.value, ahead.low, ahead.high))
        text, clear = f"difference from length alone: {points} points, {low} to {high}", ahead.low > 0
        text = f" {text}" if clear else f" △ {text}: label more"
        lines.append([(fit_start(text, width), "text" if clear else "alert")])
    elif math.isfinite(model.low) and not model.low > report.length.accuracy:  # also if unknown
        text = " △ not clearly better than length alone: label more"
        lines.append([(fit_start(text, width), "alert")])
    for heading, parts in (("better completion is", report.by_length), ("source", report.by_source)):
        if len(parts) > 1:
            lines += [[(fit_start(f" {heading}", width), "muted")], *(_row(one, width, "text") for one in parts)]
    return lines[:height]


def _row(one: Accuracy, width: int, role: str) -> Line:
    """Return name, value and interval, and a bar from 0 to 100%: the value ●, its interval ├─┤, and ┊ at chance."""
    known = math.isfinite(one.low) and math.isfinite(one.high)
    interval = f"{number(100 * one.low, 1)} to {number(100 * one.high, 1)}" if known else ""
    text = f" {fit(visible(one.name), _NAME)} {percent(one.value, 1):>7}  {interval:<12}"
    room = width - cell_len(text) - 2
    pieces: Line = [(fit(text, width) if room < 0 else text, "strong" if role == "series" else "text")]
    if room < _LEAST_BAR:
        return pieces
    cells = [(" ", "axis")] * room
    cells[(room - 1) // 2] = ("┊", "axis")
    if known:
        first, last = (round(_within(end) * (room - 1)) for end in (one.low, one.high))
        for place in range(first, last + 1):
            cells[place] = ("├" if place == first else "┤" if place == last else "─", role)
    if math.isfinite(one.value):
        cells[round(_within(one.value) * (room - 1))] = ("●", role)
    return [*pieces, (" ", "text"), *line_of(cells)]


def curve_lines(view: RunView, width: int, height: int) -> list[Line]:
    """Return at most `height` lines of at most `width` columns: title, loss, below it accuracy, and the step axis.

    Lines are moving averages over the steps; ◆ is a value on held-out pairs, on its 95% interval where that is known.
    Costs one pass over the columns.
    """
    found, history = view.held_out, view.history
    if not history and not found:
        return [rule("training", width), [(fit_start(" no steps yet", width), "muted")]][:height]
    across, rows = width - _LABELS - 1, height - 2
    reached = max(view.iteration, found[-1].iteration if found else 0, 1)
    last = reached if view.ended else max(view.total, reached)
    title, plots = "training", list[Line]()
    for name, form, least_span, down, held_out in (
        ("loss", "{:.3f}", 0.05, -(-rows // 2), [(one.iteration, one.log_loss, math.nan, math.nan) for one in found]),
        (
            "accuracy",
            "{:.0%}",
            0.1,
            rows // 2,
            [(one.iteration, one.accuracy, one.accuracy_low, one.accuracy_high) for one in found],
        ),
    ):
        buckets = history.buckets(name, across * DOTS_ACROSS) if name in history.names else []
        steps = [history.numbers[(bucket.first_index + bucket.last_index) // 2] for bucket in buckets]
        line = list(zip(steps, moving_average(buckets), strict=True))
        if (newest := next((value for _, value in reversed(line) if math.isfinite(value)), None)) is not None:
            title += f" · {name} {form.format(newest)}"
        if across >= 4 and rows >= 2:
            plots += _plot(line, held_out, form, least_span, last, across, down)
    lines = [rule(f"{title} · {_HELD_OUT} held out", width), *plots]
    return [*lines, _axis("step".rjust(_LABELS) + " ", "0", str(last), across)] if plots else lines[:height]


def _plot(
    line: Sequence[tuple[int, float]],
    held_out: Sequence[tuple[int, float, float, float]],
    form: str,
    least_span: float,
    last: int,
    across: int,
    down: int,
) -> list[Line]:
    """Draw one number over the steps, with the ends of its scale.

    line: (step, value). held_out: (step, value, low and high end of its interval). last: step at the right.
    """
    values = [value for _, *of_step in (*line, *held_out) for value in of_step if math.isfinite(value)]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    short = max(least_span - (high - low), 0.0)
    scale, canvas = Axis(low - short / 2, high + short / 2), Canvas(across, down)
    places = (round(step / last * (across * DOTS_ACROSS - 1)) for step, _ in line)
    canvas.curve(zip(places, (scale.position(value) for _, value in line), strict=True), "series")
    rows = canvas.rows()
    for step, value, low, high in held_out:
        column = round(max(step, 0) / last * (across - 1))
        if math.isfinite(low) and math.isfinite(high):
            top, bottom = (row_of(scale.position(end), down) for end in (high, low))
            for row in range(top, bottom + 1):
                if rows[row][column][0] == " ":
                    rows[row][column] = (_INTERVAL, "muted")
        if math.isfinite(value):
            rows[row_of(scale.position(value), down)][column] = (_HELD_OUT, "strong")
    labels = {0: form.format(scale.high)} | ({down - 1: form.format(scale.low)} if down > 1 else {})
    return with_axis(rows, labels, _LABELS)


def _axis(before: str, first: str, last: str, width: int) -> Line:
    """Return a line from `first` to `last` in `width` columns; without room for both, only `first`."""
    room = width - len(first) - len(last) - 2
    if room < 1:
        return [(before + first, "muted")]
    return [(f"{before}{first} ", "muted"), ("─" * room, "axis"), (f" {last}", "muted")]


def calibration_lines(bins: Sequence[CalibrationBin], error: float, width: int, height: int) -> list[Line]:
    """Return at most `height` lines of at most `width` columns: title, bars with ◂ at the predicted share, counts.

    There is a bar and a count of pairs per bin. A bar that ends below its ◂ shows that the model is overconfident.
    error: the expected calibration error (ECE).
    """
    known = f" · error {error:.3f}" if math.isfinite(error) else ""
    title = rule(f"calibration{known} · bar: observed   ◂: predicted", width)
    if not bins:
        return [title, [(fit_start(" no decided held-out pairs yet", width), "muted")]][:height]
    bars = []
    for one in bins:
        place = min(round(_within(2 * one.low - 1) * _CALIBRATION_BINS), _CALIBRATION_BINS - 1)
        bars.append((place, _within(one.confidence), _within(one.accuracy), one.pairs))
    chart = calibration_bars(bars, _CALIBRATION_BINS, ("0%", "100%"), ("pairs", "0.5", "1.0"), width, height - 1)
    return [title, *chart][:height]


def reward_histogram(chosen: Sequence[float], rejected: Sequence[float], width: int, height: int) -> list[Line]:
    """Return at most `height` lines of at most `width` columns: title with both means, both distributions, their axis.

    The bars of both have the same scale. The title counts rewards that are not finite.
    """
    count = len(chosen) + len(rejected)
    chosen, rejected = (sorted(filter(math.isfinite, rewards)) for rewards in (chosen, rejected))
    lost = count - len(chosen) - len(rejected)
    across = width - _REWARD_LABELS - 2
    if not (chosen and rejected) or across < 5:
        return [
            rule("rewards of chosen and rejected", width, missing=lost),
            [(fit_start(" none yet", width), "muted")],
        ][:height]
    low, high = min(chosen[0], rejected[0]), max(chosen[-1], rejected[-1])
    bins = min(max(round(2 * math.sqrt(len(chosen))), 5), _MOST_BINS, across) if high > low else 1
    columns = across // bins
    inner = [low / bins * (bins - place) + high / bins * place for place in range(1, bins)]
    edges = [[0, *(bisect_left(rewards, edge) for edge in inner), len(rewards)] for rewards in (chosen, rejected)]
    counts = [[max(end - start, 0) for start, end in pairwise(of_one)] for of_one in edges]
    most, rows = max(map(max, counts)), max((height - 2) // 2, 1)
    means = [number(sum(one / len(rewards) for one in rewards), 2, width=9) for rewards in (chosen, rejected)]
    lines = [rule(f"rewards · chosen {means[0]} · rejected {means[1]}", width, missing=lost)]
    for (name, role), found in zip((("chosen", "better"), ("rejected", "worse")), counts, strict=True):
        labels = [""] * (rows - 1) + [name]
        for label, bars in zip(labels, bar_lines(found, most, rows, columns), strict=True):
            lines.append([(f" {label:<{_REWARD_LABELS}}", "muted"), (bars, role)])
    first, last = number(low, 2, width=9), number(high, 2, width=9)
    return [*lines, _axis(" " * (_REWARD_LABELS + 1), first, last, bins * columns if high > low else 0)][:height]


def _within(share: float) -> float:
    """Clip `share` to 0 to 1, whatever a file contains; 0 if it is not finite."""
    return min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0


class RewardCharts(Drawn):
    """Accuracy, curve, calibration and rewards of a run: all of them where there is room, else one."""

    all_shown = False
    _charts: Sequence[Callable[[int, int], list[Line]]] = ()  # each returns at most as many lines and columns
    _at = 0  # index of the chart that is shown alone

    def show_run(self, view: RunView, predictions: Predictions | None) -> None:
        """Show a run. predictions: of its newest evaluation; None if they cannot be read."""
        report, iteration = None, 0
        if predictions is not None:
            report, iteration = predictions.report, predictions.iteration
        elif view.held_out:  # what the journal has
            report, iteration = report_of(view.held_out[-1]), view.held_out[-1].iteration
        bins, error = (report.calibration, report.calibration_error) if report else ((), math.nan)
        chosen, rejected = (predictions.chosen, predictions.rejected) if predictions else ((), ())
        self._charts = (
            partial(accuracy_lines, report, iteration),
            partial(curve_lines, view),
            partial(calibration_lines, bins, error),
            partial(reward_histogram, chosen, rejected),
        )
        self.show(self._drawn_charts)

    def fit_into(self, width: int, height: int) -> None:
        """Set the height for a pane of this size, leaving enough room for the pairs below."""
        self.all_shown = width >= _ALL[0] and height >= _ALL[1]
        self.styles.height = 2 * min(max(height // 4, 8), 14) if self.all_shown else min(max(height // 3, 5), 10)
        self.show(self._drawn_charts)

    def next(self) -> None:
        """Show the next chart if only one is shown."""
        self._at += 1
        self.show(self._drawn_charts)

    def _drawn_charts(self, width: int, height: int) -> list[Line]:
        if not self._charts:
            return []
        if not self.all_shown:
            return self._charts[self._at % len(self._charts)](width, height)
        across, down, lines = (width - _GUTTER) // 2, height // 2, list[Line]()
        for place in (0, 2):
            blocks = [chart(across, down) for chart in self._charts[place : place + 2]]
            blocks[0] += [[]] * (down - len(blocks[0]))
            lines += beside(blocks, across, (" " * _GUTTER, "text"))
        return lines
