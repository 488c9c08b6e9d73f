"""Frontier of reward against KL: the score that a run reached at each distance from its reference.

Gao et al. 2022 (arXiv 2210.10760) and Rafailov et al. 2023 (arXiv 2305.18290, figure 2) compare methods by it: a
higher score says little if it was bought with a higher KL.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from workbench.compare.compared_run import ComparedRun, mean, run_columns, windows_text
from workbench.compare.lines import NUMBER, Row, notes, role_of, table_lines
from workbench.kit.lines import Line, Piece
from workbench.kit.scale import Axis, scale_of, tick_texts, ticks
from workbench.numbers import number
from workbench.run.history import History
from workbench.run.metrics import METRICS
from workbench.run.view import RunView

_MANY = 5  # evaluations that suffice for a comparison
_LEVELS = 6
_STEPS = 5  # steps from a mean to the first one that shares no iteration with it
_ROUND = (1.0, 2.0, 5.0)

SEVERAL = "+"  # runs in one place of the plot
_PLOT_LINES = 18
_PLOT_WIDTH = 110  # columns at most: a wider one is no clearer
LABELS = 8  # columns of the y axis's numbers
_COLUMNS_A_TICK = 10
LINES_A_TICK = 3
AXES = {metric.field: metric._replace(threshold=None) for metric in METRICS}


class Point(NamedTuple):
    """A point of a run: `kl` in nats per sequence, `iteration` the last one that counts for it."""

    iteration: int
    kl: float
    score: float


class Frontier(NamedTuple):
    """The points of each run. held_out: for each run, whether it is compared on held-out prompts."""

    training: list[list[Point]]
    evaluations: list[list[Point]]
    held_out: list[bool]

    @property
    def compared(self) -> list[list[Point]]:
        """Points of each run that are compared with those of the other runs."""
        chosen = zip(self.held_out, self.evaluations, self.training, strict=True)
        return [evaluations if held_out else training for held_out, evaluations, training in chosen]


class ScatterMark(NamedTuple):
    """A point: its place, the letter of its run, and the character to draw."""

    x: float
    y: float
    letter: str
    sign: str


def frontier_of(runs: Sequence[ComparedRun]) -> Frontier:
    """Return the points of `runs`.

    Runs are compared on held-out prompts if each has five evaluations, else on their training batches. A run without
    scores of training batches, such as a DPO run, is always compared on held-out prompts.
    """
    training = [training_points(run) for run in runs]
    evaluations = [held_out_points(run) for run in runs]
    many = all(len(e) >= _MANY for t, e in zip(training, evaluations, strict=True) if t or e)
    held_out = [bool(e) and (many or not t) for t, e in zip(training, evaluations, strict=True)]
    return Frontier(training, evaluations, held_out)


def training_points(run: ComparedRun) -> list[Point]:
    """Return the points of the training batches of `run`; see `batch_points`."""
    return batch_points(run.view.history, run.window)


def batch_points(history: History, size: int) -> list[Point]:
    """Return means over `size` neighbouring iterations, a fifth of that apart; over all if there are fewer.

    None if runs of this kind have no score or no KL.
    """
    if not {"kl", "score_mean"} <= {*history.names}:
        return []
    known = _finite(map(Point, history.numbers, history.column("kl"), history.column("score_mean")))
    size = min(size, len(known))
    ends = range(len(known), max(size - 1, 0), -max(size // _STEPS, 1))
    return _finite(_mean_point(known[end - size : end]) for end in reversed(ends))


def held_out_points(run: ComparedRun) -> list[Point]:
    """Return the evaluations of `run`; see `evaluation_points`."""
    return evaluation_points(run.view)


def evaluation_points(view: RunView) -> list[Point]:
    """Return the evaluations on held-out prompts, including the one before the first iteration."""
    return _finite(Point(e.iteration, e.kl, e.score_mean) for e in view.evaluations)


def best(points: Iterable[Point], kl: float = math.inf) -> Point | None:
    """Return the point of highest score with a KL of at most `kl`; None if there is none."""
    return max((point for point in points if point.kl <= kl), key=lambda point: point.score, default=None)


def levels(points: Iterable[Point]) -> list[float]:
    """Return at most six round KLs, ascending; the last is the first that no point exceeds."""
    reached = [point.kl for point in points if point.kl > 0]
    if not reached:
        return []
    lowest, highest = min(reached), max(reached)
    found = []
    for level in _round_values(lowest):
        found.append(level)
        if level >= highest:
            break
    return found[-_LEVELS:]


def frontier_lines(runs: Sequence[ComparedRun], width: int) -> Iterator[Line]:
    """Yield lines of at most `width` columns: the plot, and the best score of each run at a KL of at most so much."""
    found = frontier_of(runs)
    if not any(found.compared):
        yield from notes("no run has both a score and a KL in nats a sequence", width)
        return
    yield from scatter(_marks(runs, found), min(width, _PLOT_WIDTH), _PLOT_LINES)
    yield from notes(_legend(runs, found), width)
    if kls := levels(point for points in found.compared for point in points):
        yield []
        yield from notes(_compared_by(runs, found), width)
        yield from table_lines(run_columns(runs), [_level_row(found, kl) for kl in kls], width)


def scatter(marks: Sequence[ScatterMark], width: int, height: int) -> list[Line]:
    """Return score (y) against KL (x) as `height` lines of `width` columns, including axes. marks: at least one.

    A place that several runs share is +; of one run's marks, the later one is shown. Spikes are drawn at the edge.
    """
    across, down = max(width - LABELS - 2, 1), max(height - 2, 1)
    x_scale = scale_of(((mark.x, mark.x) for mark in marks), AXES["kl"])
    y_scale = scale_of(((mark.y, mark.y) for mark in marks), AXES["score_mean"])
    cells: dict[tuple[int, int], ScatterMark] = {}
    for mark in marks:
        place = _row(y_scale.position(mark.y), down), round(x_scale.position(mark.x) * (across - 1))
        other = cells.get(place, mark)
        cells[place] = mark if other.letter == mark.letter else mark._replace(letter="", sign=SEVERAL)
    values = ticks(y_scale, max(down // LINES_A_TICK, 1))
    labels = {_row(y_scale.position(value), down): text for value, text in zip(values, tick_texts(values), strict=True)}
    return [
        [
            (labels.get(row, "").rjust(LABELS), "muted"),
            (" ┤" if row in labels else " │", "muted"),
            *(_piece(cells.get((row, column))) for column in range(across)),
        ]
        for row in range(down)
    ] + x_axis(x_scale, across)


def _round_values(start: float) -> Iterator[float]:
    """Yield 1, 2 and 5 times the powers of ten, from the first that is at least `start`, without end."""
    for power in itertools.count(math.floor(math.log10(start))):
        yield from (value for factor in _ROUND if (value := factor * 10.0**power) >= start)


def _finite(points: Iterable[Point]) -> list[Point]:
    return [point for point in points if math.isfinite(point.kl) and math.isfinite(point.score)]


def _mean_point(points: Sequence[Point]) -> Point:
    return Point(points[-1].iteration, mean(p.kl for p in points), mean(p.score for p in points))


def _marks(runs: Sequence[ComparedRun], found: Frontier) -> list[ScatterMark]:
    """Return the marks of all runs, evaluations last so that they stay visible."""
    return [
        ScatterMark(point.kl, point.score, run.letter, sign(run.letter))
        for sign, of_runs in ((str.lower, found.training), (str.upper, found.evaluations))
        for run, points in zip(runs, of_runs, strict=True)
        for point in points
    ]


def _legend(runs: Sequence[ComparedRun], found: Frontier) -> str:
    parts = ["KL to the right, nats a sequence"]
    if any(found.training):
        size = windows_text([run for run, points in zip(runs, found.training, strict=True) if points])
        parts.append(f"small letters: training batches, each point the mean of {size} iterations")
    if any(found.evaluations):
        parts.append("capitals: held-out prompts")
    parts.append(f"{SEVERAL}: several runs")
    return "; ".join(parts)


def _compared_by(runs: Sequence[ComparedRun], found: Frontier) -> str:
    """Return the line above the table of KLs: which scores it compares."""
    on_held_out = [run.letter for run, held_out in zip(runs, found.held_out, strict=True) if held_out]
    if not on_held_out:
        return "best score of the training batches at a KL of at most"
    if all(held_out or not points for held_out, points in zip(found.held_out, found.compared, strict=True)):
        return "best score on held-out prompts at a KL of at most"
    return f"best score of the training batches, of {', '.join(on_held_out)} on held-out prompts, at a KL of at most"


def _level_row(found: Frontier, kl: float) -> Row:
    reached = [best(points, kl) for points in found.compared]
    cells = ["-" if point is None else number(point.score, width=NUMBER) for point in reached]
    if len(reached) == 2:
        first, second = reached
        cells.append(number(second.score - first.score, signed=True, width=NUMBER) if first and second else "")
    return Row(f"  {kl:g}", "nats/seq", cells)


def _piece(mark: ScatterMark | None) -> Piece:
    if mark is None:
        return " ", "text"
    return mark.sign, role_of(mark.letter) if mark.letter else "strong"


def x_axis(scale: Axis, across: int) -> list[Line]:
    """Return the x axis of a plot of `across` columns, and the numbers below it."""
    line, labels = ["─"] * across, [" "] * across
    values = ticks(scale, max(across // _COLUMNS_A_TICK, 1))
    free_from = 0
    for value, text in zip(values, tick_texts(values), strict=True):
        column = round(scale.position(value) * (across - 1))
        start = min(max(column - len(text) // 2, 0), across - len(text))
        if start >= free_from:
            line[column] = "┴"
            labels[start : start + len(text)] = text
            free_from = start + len(text) + 2
    indent = " " * LABELS
    return [[(f"{indent} └{''.join(line)}", "muted")], [(f"{indent}  {''.join(labels)}", "muted")]]


def _row(position: float, down: int) -> int:
    return round((1 - position) * (down - 1))
