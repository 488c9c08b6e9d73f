"""Charts of a reward-model run, side by side or one below the other."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import ClassVar, NamedTuple

from textual.app import ComposeResult
from textual.containers import Container

from trainer.reward_model.predictions import CalibrationBin, Predictions, RewardModelReport
from workbench.columns import fit_start
from workbench.kit.drawing import Drawn, component_classes, rule
from workbench.kit.glyphs import DOTS_ACROSS, DOTS_DOWN, Canvas, bar, bar_lines
from workbench.kit.lines import Line, line_of
from workbench.kit.pane import MountedWhole
from workbench.kit.scale import Axis
from workbench.kit.window import moving_average
from workbench.numbers import number
from workbench.reward_model.accuracy import accuracy_lines, report_of
from workbench.run.history import History
from workbench.run.view import RunView

_HELD_OUT, _INTERVAL = "◆", "│"
_LABELS = 7  # columns
_CALIBRATION_BINS = 10  # from 0.5 to 1
_CALIBRATION_LABELS = 6  # columns
_WIDEST = 8
_REWARD_LABELS = 9  # columns
_MOST_BINS = 60


class _Series(NamedTuple):
    """One number over the steps. line: (step, value). held_out: (step, value, low and high end of its interval)."""

    name: str
    form: str
    least_span: float
    line: list[tuple[int, float]]  # moving averages
    held_out: list[tuple[int, float, float, float]]

    @property
    def newest(self) -> str:
        value = next((value for _, value in reversed(self.line) if math.isfinite(value)), math.nan)
        return "" if math.isnan(value) else f" · {self.name} {self.form.format(value)}"

    def scale(self) -> Axis:
        held_out = [value for _, *values in self.held_out for value in values]
        values = [value for value in (*(value for _, value in self.line), *held_out) if math.isfinite(value)]
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        short = max(self.least_span - (high - low), 0.0)
        return Axis(low - short / 2, high + short / 2)


def curve_lines(view: RunView, width: int, height: int) -> list[Line]:
    """Return at most `height` lines of at most `width` columns: title, loss, below it accuracy, and the step axis.

    Lines are moving averages over the steps; ◆ is a value on held-out pairs, on its 95% interval where that is known.
    Costs one pass over the columns.
    """
    found = view.held_out
    if not view.history and not found:
        return [rule("training", width), [(fit_start(" no steps yet", width), "muted")]][:height]
    across, rows = width - _LABELS - 1, height - 2
    losses, accuracies = (_averages(view.history, name, across * DOTS_ACROSS) for name in ("loss", "accuracy"))
    loss = _Series("loss", "{:.3f}", 0.05, losses, [(one.iteration, one.log_loss, math.nan, math.nan) for one in found])
    held_out = [(one.iteration, one.accuracy, one.accuracy_low, one.accuracy_high) for one in found]
    accuracy = _Series("accuracy", "{:.0%}", 0.1, accuracies, held_out)
    lines = [rule(f"training{loss.newest}{accuracy.newest} · {_HELD_OUT} held out", width)]
    if across < 4 or rows < 2:
        return lines[:height]
    reached = max(view.iteration, found[-1].iteration if found else 0, 1)
    last = reached if view.ended else max(view.total, reached)
    for series, down in ((loss, -(-rows // 2)), (accuracy, rows // 2)):
        lines += _plot(series, last, across, down)
    lines.append([("step".rjust(_LABELS) + " ", "muted"), *_axis(last, across)])
    return lines[:height]


def _averages(history: History, name: str, width: int) -> list[tuple[int, float]]:
    """Return at most `width` points of the metric's moving average, each at the middle step of its bucket."""
    buckets = history.buckets(name, width) if name in history.names else []
    steps = [history.numbers[(bucket.first_index + bucket.last_index) // 2] for bucket in buckets]
    return list(zip(steps, moving_average(buckets), strict=True))


def _plot(series: _Series, last: int, across: int, down: int) -> list[Line]:
    """Draw one series as lines, with the ends of its scale."""
    scale, canvas, top = series.scale(), Canvas(across, down), DOTS_DOWN * down - 1

    def row_of(value: float) -> int:
        return round((1 - scale.position(value)) * top) // DOTS_DOWN

    before: tuple[int, int] | None = None
    for step, value in series.line:
        if math.isnan(value):
            before = None
            continue
        here = round(step / last * (across * DOTS_ACROSS - 1)), round((1 - scale.position(value)) * top)
        canvas.line(before or here, here, "series")
        before = here
    rows = canvas.rows()
    for step, value, low, high in series.held_out:
        column = round(max(step, 0) / last * (across - 1))
        if math.isfinite(low) and math.isfinite(high):
            for row in range(row_of(high), row_of(low) + 1):
                if rows[row][column][0] == " ":
                    rows[row][column] = (_INTERVAL, "muted")
        if math.isfinite(value):
            rows[row_of(value)][column] = (_HELD_OUT, "strong")
    labels = {0: series.form.format(scale.high)}
    if down > 1:
        labels[down - 1] = series.form.format(scale.low)
    return [
        [(labels.get(row, "").rjust(_LABELS)[:_LABELS] + "│", "muted"), *line_of(cells)]
        for row, cells in enumerate(rows)
    ]


def _axis(last: int, across: int) -> Line:
    end = str(last)
    room = across - len(end) - 3
    return [("0 ", "muted"), ("─" * room, "axis"), (f" {end}", "muted")] if room > 0 else [(end[:across], "muted")]


def calibration_lines(bins: Sequence[CalibrationBin], error: float, width: int, height: int) -> list[Line]:
    """Return at most `height` lines of at most `width` columns: title, bars with ◂ at the predicted share, counts.

    There is a bar and a count of pairs per bin. A bar that ends below its ◂ shows that the model is overconfident.
    error: the expected calibration error (ECE).
    """
    known = f" · error {error:.3f}" if math.isfinite(error) else ""
    title = rule(f"calibration{known} · bar: observed   ◂: predicted", width)
    across = (width - _CALIBRATION_LABELS - 1) // _CALIBRATION_BINS
    if not bins:
        return [title, [(fit_start(" no decided held-out pairs yet", width), "muted")]][:height]
    if across < 2:
        return [title][:height]
    across, rows = min(across, _WIDEST), max(height - 3, 1)
    columns = across * _CALIBRATION_BINS
    stacks: list[list[tuple[str, str]]] = [[(" ", "text")] * columns for _ in range(rows)]
    counts, marks = [" "] * columns, [""] * _CALIBRATION_BINS
    for one in bins:
        place = min(round(_within(2 * one.low - 1) * _CALIBRATION_BINS), _CALIBRATION_BINS - 1)
        for row, cell in enumerate(reversed(bar(_within(one.accuracy), rows))):
            for column in range(place * across, (place + 1) * across - 1):
                stacks[row][column] = (cell, "series")
        stacks[min(int((1 - _within(one.confidence)) * rows), rows - 1)][(place + 1) * across - 1] = ("◂", "target")
        marks[place] = _pairs(one.pairs, across - 1)
    for place, text in enumerate(marks):
        counts[place * across : place * across + len(text)] = text
    labels = {0: "100%", rows - 1: "0%"} if rows > 1 else {}
    plot: list[Line] = [
        [(labels.get(row, "").rjust(_CALIBRATION_LABELS) + " ", "muted"), *line_of(cells)]
        for row, cells in enumerate(stacks)
    ]
    ends = "0.5" + "predicted".center(columns - 6) + "1.0"
    return [
        title,
        *plot,
        [("pairs".rjust(_CALIBRATION_LABELS) + " ", "muted"), ("".join(counts), "muted")],
        [(" " * (_CALIBRATION_LABELS + 1) + ends, "muted")],
    ][:height]


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
    counts = [_counts(rewards, low, high, bins) for rewards in (chosen, rejected)]
    most = max(map(max, counts))
    rows = max((height - 2) // 2, 1)
    lines = [rule(f"rewards · chosen {_mean(chosen)} · rejected {_mean(rejected)}", width, missing=lost)]
    for (name, role), found in zip((("chosen", "series"), ("rejected", "run-1")), counts, strict=True):
        labels = [""] * (rows - 1) + [name]
        for label, bars in zip(labels, bar_lines(found, most, rows, columns), strict=True):
            lines.append([(f" {label:<{_REWARD_LABELS}}", "muted"), (bars, role)])
    return [*lines, _reward_axis(low, high, bins * columns)][:height]


def _within(share: float) -> float:
    """Clip `share` to 0 to 1, whatever a file contains; 0 if it is not finite."""
    return min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0


def _pairs(count: int, width: int) -> str:
    """Return a number of pairs in at most `width` columns; + if it does not fit."""
    text = str(count) if count < 1000 else f"{count // 1000}k"
    return text if len(text) <= width else "+"


def _counts(ascending: Sequence[float], low: float, high: float, bins: int) -> list[int]:
    """Count the rewards in each of `bins` equal parts from `low` to `high`."""
    inner = [low / bins * (bins - place) + high / bins * place for place in range(1, bins)]
    edges = [0, *(bisect_left(ascending, edge) for edge in inner), len(ascending)]
    return [max(end - start, 0) for start, end in pairwise(edges)]


def _mean(rewards: Sequence[float]) -> str:
    return number(sum(reward / len(rewards) for reward in rewards), 2, width=9)


def _reward_axis(low: float, high: float, width: int) -> Line:
    first, last = number(low, 2, width=9), number(high, 2, width=9)
    indent = " " * (_REWARD_LABELS + 1)
    room = width - len(first) - len(last) - 2
    if high <= low or room < 1:
        return [(f"{indent}{first}", "muted")]
    return [(f"{indent}{first} ", "muted"), ("─" * room, "axis"), (f" {last}", "muted")]


CHARTS = ("accuracy", "curve", "calibration", "histogram")
_ALL = (96, 30)  # columns and lines of the smallest pane that shows all

Draw = Callable[[int, int], list[Line]]  # returns at most `height` lines of at most `width` columns


class RewardChart(Drawn):
    """One of the charts. `show` replaces the function that draws it."""

    COMPONENT_CLASSES: ClassVar[set[str]] = component_classes(
        "text", "strong", "muted", "axis", "series", "run-1", "target", "missing", "alert"
    )
    _draw: Draw | None = None

    def show(self, draw: Draw) -> None:
        self._draw = draw
        self.redraw()

    def draw(self, width: int, height: int) -> list[Line]:
        return self._draw(width, height) if self._draw else []


class RewardCharts(MountedWhole, Container):
    """Container with accuracy, curve, calibration and rewards, in that order."""

    all_shown = False
    _at = 0  # index of the chart that is shown alone

    def compose(self) -> ComposeResult:
        for name in CHARTS:
            yield RewardChart(id=f"reward-{name}")

    def on_mount(self) -> None:
        self._display()

    def show(self, view: RunView, predictions: Predictions | None) -> None:
        """Show a run. predictions: of its newest evaluation; None if they cannot be read."""
        report, iteration = _newest_report(view, predictions)
        bins, error = (report.calibration, report.calibration_error) if report else ((), math.nan)
        chosen, rejected = (predictions.chosen, predictions.rejected) if predictions else ((), ())
        drawn: dict[str, Draw] = {
            "accuracy": partial(accuracy_lines, report, iteration),
            "curve": partial(curve_lines, view),
            "calibration": partial(calibration_lines, bins, error),
            "histogram": partial(reward_histogram, chosen, rejected),
        }
        for name, draw in drawn.items():
            self.query_one(f"#reward-{name}", RewardChart).show(draw)

    def fit_into(self, width: int, height: int) -> None:
        """Set the height for a pane of this size, leaving enough room for the pairs below."""
        self.all_shown = width >= _ALL[0] and height >= _ALL[1]
        self.set_class(self.all_shown, "-all")
        self.styles.height = 2 * min(max(height // 4, 8), 14) if self.all_shown else min(max(height // 3, 5), 10)
        self._display()

    def next(self) -> None:
        """Show the next chart if only one is shown."""
        self._at = (self._at + 1) % len(CHARTS)
        self._display()

    def _display(self) -> None:
        for place, chart in enumerate(self.query(RewardChart)):
            chart.display = self.all_shown or place == self._at


def _newest_report(view: RunView, predictions: Predictions | None) -> tuple[RewardModelReport | None, int]:
    """Return the newest report, or what the journal has of it, and after how many steps it was made."""
    if predictions is not None:
        return predictions.report, predictions.iteration
    if view.held_out:
        return report_of(view.held_out[-1]), view.held_out[-1].iteration
    return None, 0
