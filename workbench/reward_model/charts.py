"""Charts of a reward-model run, side by side or one below the other, and its accuracy beside simpler baselines."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from rich.cells import cell_len

from trainer.reward_model.predictions import Accuracy, CalibrationBin, Predictions, RewardModelReport
from workbench.kit.axes import Axis, moving_average
from workbench.kit.drawing import Drawn, rule
from workbench.kit.glyphs import DOTS_ACROSS, Canvas, bar_lines, calibration_bars, row_of, with_axis
from workbench.reward_model.verdict import newest_report
from workbench.run.view import RunView
from workbench.text import Line, beside, fit, fit_start, line_of, number, packed, percent, visible

_NAME, _BAR_FROM = 22, 44  # columns: names of accuracies, and all before their bars
_LEAST_BAR = 12
_HELD_OUT, _INTERVAL = "◆", "│"
_LABELS = 8  # columns
_CALIBRATION_BINS = 10  # from 0.5 to 1
_REWARD_LABELS = 9  # columns
_MOST_BINS = 60
_ALL = (96, 30)  # columns and lines of the smallest pane that shows all charts
_ACCURACY, _PAIRS = 4, 17  # lines: of the accuracy at least, and what the pairs and the lines around them keep
_GUTTER = 2  # columns between two charts


def accuracy_lines(report: RewardModelReport, iteration: int, width: int, height: int) -> list[Line]:
    """Return at most `height` lines of at most `width` columns: an axis, bars of accuracies on it, further numbers.

    report: of the evaluation after `iteration` steps.
    """
    model, ahead, untrained = report.accuracy, report.over_length, report.untrained
    title = fit(f" held-out accuracy, step {iteration:,}", _BAR_FROM)
    room = width - len(title) - 1
    axis = f"0%  {'50%':^{room - 8}}100%" if room >= _LEAST_BAR else ""
    alone = Accuracy("length alone", model.pairs, report.length.accuracy, math.nan, math.nan)
    lines: list[Line] = [
        [(fit_start(title + axis, width), "muted")],
        _bar(replace(model, name="reward model"), width, "policy"),
        _bar(alone, width, "muted"),
    ]
    texts = [f"untrained {percent(untrained.accuracy, 1)}"] if untrained else []
    log_loss, error = (number(value, width=9) for value in (report.log_loss, report.calibration_error))
    texts += [f"log-loss {log_loss} nats", f"calibration error {error}"]
    if ahead is not None:
        points, low, high = (number(100 * share, 1, signed=True) for share in ahead)
        texts.insert(0, f"over length alone {points} points ({low} to {high})")
    lines += [[(fit_start(" " + "   ".join(row), width), "text")] for row in packed(texts, width - 1, 3)]
    for heading, parts in (("if the better completion is", report.by_length), ("by source", report.by_source)):
        if len(parts) > 1 and len(lines) + len(parts) < height:
            lines += [[(fit_start(f" {heading}", width), "muted")], *(_bar(one, width, "text") for one in parts)]
    return lines[:height]


def _bar(one: Accuracy, width: int, role: str) -> Line:
    """Return name, value, interval, and a bar from 0 to 100%: the value ●, its interval ├─┤, and ┊ at chance."""
    known = math.isfinite(one.low) and math.isfinite(one.high)
    interval = f"{number(100 * one.low, 0)} to {percent(one.high)}" if known else ""
    text = f" {fit(visible(one.name), _NAME)} {percent(one.value, 1):>6}  {interval:<12}"
    room = width - cell_len(text) - 1
    pieces: Line = [(fit(text, width) if room < 0 else text, "strong" if role == "policy" else "text")]
    if room < _LEAST_BAR:
        return pieces
    value, chance = (round(_within(share) * (room - 1)) for share in (one.value, 0.5))
    cells = [("━" if place < value else " ", role) for place in range(room)]
    cells[chance] = ("┿", role) if chance < value else ("┊", "axis")
    if known:
        first, last = (round(_within(end) * (room - 1)) for end in (one.low, one.high))
        for place in range(max(value, first), last + 1):
            cells[place] = ("─", role)
        cells[first], cells[last] = ("┣" if first < value else "├", role), ("┤", role)
    if math.isfinite(one.value):
        cells[value] = ("●", role)
    return [*pieces, *line_of(cells)]


def curve_lines(view: RunView, width: int, height: int) -> list[Line]:
    """Return at most `height` lines of at most `width` columns: title, loss, below it accuracy, and the step axis.

    Lines are moving averages over the steps; ◆ is a value on held-out pairs, on its 95% interval where that is known.
    Costs one pass over the columns.
    """
    if not view.history and not view.held_out:
        return [rule("training", width), [(fit_start(" no steps yet", width), "muted")]][:height]
    across, rows = width - _LABELS - 1, height - 2
    reached = max(view.iteration, view.held_out[-1].iteration if view.held_out else 0, 1)
    last = reached if view.ended else max(view.total, reached)
    loss, losses = _plot(view, "loss", last, across, (rows + 1) // 2)
    accuracy, accuracies = _plot(view, "accuracy", last, across, rows // 2)
    lines = [rule("  ".join(filter(None, (loss, accuracy, f"{_HELD_OUT} held out"))), width), *losses, *accuracies]
    return [*lines, _axis("step".rjust(_LABELS) + " ", "0", str(last), across)] if len(lines) > 1 else lines[:height]


def _plot(view: RunView, name: str, last: int, across: int, down: int) -> tuple[str, list[Line]]:
    """Return the newest average of loss or accuracy, and a plot of it up to the step `last` where there is room."""
    form, least_span = ("{:.3f}", 0.05) if name == "loss" else ("{:.0%}", 0.1)
    ends = ["log_loss"] if name == "loss" else ["accuracy", "accuracy_low", "accuracy_high"]
    history = view.history
    buckets = history.buckets(name, across * DOTS_ACROSS) if name in history.names else []
    steps = [history.numbers[(bucket.first_index + bucket.last_index) // 2] for bucket in buckets]
    line = list(zip(steps, moving_average(buckets), strict=True))
    newest = next((f"{name} {form.format(value)}" for _, value in reversed(line) if math.isfinite(value)), "")
    if across < 4 or down < 1:
        return newest, []
    held_out = [(one.iteration, *(getattr(one, end) for end in ends)) for one in view.held_out]
    values = [value for _, *of_step in (*line, *held_out) for value in of_step if math.isfinite(value)]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    short = max(least_span - (high - low), 0.0)
    scale, canvas = Axis(low - short / 2, high + short / 2), Canvas(across, down)
    places = (round(step / last * (across * DOTS_ACROSS - 1)) for step, _ in line)
    canvas.curve(zip(places, (scale.position(value) for _, value in line), strict=True), "policy")
    rows = canvas.rows()
    for step, value, *interval in held_out:
        column = round(max(step, 0) / last * (across - 1))
        if interval and all(map(math.isfinite, interval)):
            bottom, top = (row_of(scale.position(end), down) for end in interval)
            for row in range(top, bottom + 1):
                if rows[row][column][0] == " ":
                    rows[row][column] = (_INTERVAL, "muted")
        if math.isfinite(value):
            rows[row_of(scale.position(value), down)][column] = (_HELD_OUT, "strong")
    labels = {down // 2: name, 0: form.format(scale.high)} | ({down - 1: form.format(scale.low)} if down > 1 else {})
    return newest, with_axis(rows, labels, _LABELS)


def _axis(before: str, first: str, last: str, width: int) -> Line:
    """Return a line from `first` to `last` in `width` columns; without room for both, only `first`."""
    room = width - len(first) - len(last) - 2
    if room < 1:
        return [(before + first, "muted")]
    return [(f"{before}{first} ", "muted"), ("─" * room, "axis"), (f" {last}", "muted")]


def calibration_lines(bins: Sequence[CalibrationBin], width: int, height: int) -> list[Line]:
    """Return at most `height` lines of at most `width` columns: title, bars with ◂ at the predicted share, counts.

    There is a bar and a count of pairs per bin. A bar that ends below its ◂ shows that the model is overconfident.
    """
    title = rule("calibration", width, legend=[("█ right", "policy"), ("◂ predicted", "target")])
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
    sides = (("chosen", "better"), ("rejected", "worse"))
    legend = [(f"{name} {mean}", role) for (name, role), mean in zip(sides, means, strict=True)]
    lines = [rule("rewards", width, legend=legend, missing=lost)]
    for (name, role), found in zip(sides, counts, strict=True):
        labels = [""] * (rows - 1) + [name]
        for label, bars in zip(labels, bar_lines(found, most, rows, columns), strict=True):
            lines.append([(f" {label:<{_REWARD_LABELS}}", "muted"), (bars, role)])
    first, last = number(low, 2, width=9), number(high, 2, width=9)
    return [*lines, _axis(" " * (_REWARD_LABELS + 1), first, last, bins * columns if high > low else 0)][:height]


def _within(share: float) -> float:
    """Clip `share` to 0 to 1, whatever a file contains; 0 if it is not finite."""
    return min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0


class RewardCharts(Drawn):
    """Accuracy, calibration, curve and rewards of a run: all of them where there is room, else one."""

    all_shown = False
    _charts: Sequence[Callable[[int, int], list[Line]]] = ()  # each returns at most as many lines and columns
    _at = 0  # index of the chart that is shown alone
    _below = 0  # lines of those below the accuracy

    def show_run(self, view: RunView, predictions: Predictions | None) -> None:
        """Show a run. predictions: of its newest evaluation; None if they cannot be read."""
        report, iteration = newest_report(view, predictions)
        chosen, rejected = (predictions.chosen, predictions.rejected) if predictions else ((), ())
        self._charts = (
            partial(accuracy_lines, report, iteration),
            partial(calibration_lines, report.calibration),
            partial(curve_lines, view),
            partial(reward_histogram, chosen, rejected),
        )
        self.show(self._drawn_charts)

    def fit_into(self, width: int, height: int) -> None:
        """Set the height for a pane of this size, leaving enough room for the pairs below."""
        self.all_shown = width >= _ALL[0] and height >= _ALL[1]
        if self.all_shown and self._charts:
            self._below = min(max(height // 4, 8), 14)
            room = max(height - self._below - _PAIRS, _ACCURACY)
            self.styles.height = self._below + max(len(self._charts[0](width, room)), _ACCURACY) + 2  # blank lines
        else:
            self.styles.height = min(max(height // 3, 5), 10)
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
        first, *others = self._charts
        across, above = (width - 2 * _GUTTER) // len(others), height - self._below
        lines = [[], *first(width, above - 2)]
        lines += [[]] * (above - len(lines))
        return [*lines, *beside([chart(across, self._below) for chart in others], across, (" " * _GUTTER, "text"))]
