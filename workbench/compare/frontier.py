"""Frontier of reward against KL: the score that a run reached at each distance from its reference.

Gao et al. 2022 (arXiv 2210.10760) and Rafailov et al. 2023 (arXiv 2305.18290, figure 2) compare methods by it: a
higher score says little if it was bought with a higher KL.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trainer.events import Evaluation
from workbench.compare.compared_run import RunGroup, mean
from workbench.kit.axes import Axis, scale_of, tick_texts, ticks
from workbench.run.history import MetricHistory
from workbench.run.metrics import METRICS
from workbench.text import Line, Piece, line_of

_MANY = 5  # evaluations that suffice for a comparison
_LEVELS = 6
_STEPS = 5  # steps from a mean to the first one that shares no iteration with it
_ROUND = (1.0, 2.0, 5.0)

SEVERAL = "+"  # several runs in one place of the plot
CURSOR = "●"
LIMIT = "┊"
BEST = "·"
_LABELS = 8  # columns of the y axis's numbers
_COLUMNS_A_TICK = 10
_LINES_A_TICK = 3
_NAMED = 5  # iterations that are named beside the first curve
_AXES = {metric.field: metric._replace(threshold=None) for metric in METRICS}


class Point(NamedTuple):
    """A point of a run: `kl` in nats per sequence, `iteration` the last one that counts for it."""

    iteration: int
    kl: float
    score: float


@dataclass(frozen=True, slots=True)
class Curve:
    """The points of a run in order of iterations. name: safe to print. sign, held_out_sign: how they are drawn."""

    name: str
    training: Sequence[Point]  # means of training batches
    held_out: Sequence[Point]  # evaluations on held-out prompts, including the one before the first iteration
    sign: str = "a"
    held_out_sign: str = "A"
    role: str = "text"
    on_held_out: bool = False  # whether it is compared by its evaluations

    @property
    def compared(self) -> Sequence[Point]:
        """Points that are compared with those of the other runs."""
        return self.held_out if self.on_held_out else self.training


def curves_of(groups: Sequence[RunGroup]) -> list[list[Curve]]:
    """Return the curve of each run of each group.

    Runs are compared on held-out prompts if each has five evaluations, else on their training batches. A run without
    scores of training batches, such as a DPO run, is always compared on held-out prompts.
    """
    found = [
        [(batch_points(run.view.history, run.window), evaluation_points(run.view.evaluations)) for run in group.runs]
        for group in groups
    ]
    many = all(len(e) >= _MANY for of_group in found for t, e in of_group if t or e)
    return [
        [
            Curve(group.name, t, e, group.letter.lower(), group.letter, group.role, bool(e) and (many or not t))
            for t, e in of_group
        ]
        for group, of_group in zip(groups, found, strict=True)
    ]


def batch_points(history: MetricHistory, size: int) -> list[Point]:
    """Return the `means` over `size` iterations; none if runs of this kind have no score or no KL."""
    if not {"kl", "score_mean"} <= {*history.names}:
        return []
    return means(map(Point, history.numbers, history.column("kl"), history.column("score_mean")), size)


def means(points: Iterable[Point], size: int) -> list[Point]:
    """Return means over `size` neighbouring points, a fifth of that apart; over all if there are fewer."""
    known = _finite(points)
    size = min(size, len(known))
    ends = range(len(known), max(size - 1, 0), -max(size // _STEPS, 1))
    parts = (known[end - size : end] for end in reversed(ends))
    return _finite(Point(part[-1].iteration, mean(p.kl for p in part), mean(p.score for p in part)) for part in parts)


def evaluation_points(evaluations: Iterable[Evaluation]) -> list[Point]:
    """Return the points of evaluations on held-out prompts, including the one before the first iteration."""
    return _finite(Point(e.iteration, e.kl, e.score_mean) for e in evaluations)


def best(points: Iterable[Point], kl: float = math.inf) -> Point | None:
    """Return the point of highest score with a KL of at most `kl`; None if there is none."""
    return max((point for point in points if point.kl <= kl), key=lambda point: point.score, default=None)


def levels(points: Iterable[Point]) -> list[float]:
    """Return at most six round KLs, ascending; the last is the first that no point exceeds."""
    reached = [point.kl for point in points if point.kl > 0]
    if not reached:
        return []
    found = list[float]()
    powers = itertools.count(math.floor(math.log10(min(reached))))
    for level in (factor * 10.0**power for power in powers for factor in _ROUND):
        if level >= min(reached):
            found.append(level)
        if level >= max(reached):
            break
    return found[-_LEVELS:]


def plot(
    curves: Sequence[Curve], width: int, height: int, *, cursor: Point | None = None, limit: float | None = None
) -> list[Line]:
    """Return score (y) against KL (x) as `height` lines of `width` columns, including axes. curves: with some points.

    Where several runs meet is +; of one run's points, the later one is shown, and evaluations above training batches.
    Dots show the best score so far. Spikes are drawn at the edge. cursor: a point to mark, whose run has some of its
    iterations beside it. limit: a KL to mark.
    """
    points = [point for curve in curves for point in (*curve.training, *curve.held_out)]
    across, down = max(width - _LABELS - 2, 1), max(height - 2, 1)
    x_scale = scale_of(((point.kl, point.kl) for point in points), _AXES["kl"]._replace(threshold=limit))
    y_scale = scale_of(((point.score, point.score) for point in points), _AXES["score_mean"])

    def row_of(score: float) -> int:
        return round((1 - y_scale.position(score)) * (down - 1))

    def place(point: Point) -> tuple[int, int]:
        return row_of(point.score), round(x_scale.position(point.kl) * (across - 1))

    cells: dict[tuple[int, int], Piece] = {}
    dot = (BEST, "muted")
    highest = down
    compared = sorted((place(point) for curve in curves for point in curve.compared), key=lambda at: at[1])
    for (row, column), (_, after) in itertools.pairwise([*compared, (0, across)]):
        highest = min(highest, row)
        cells |= {(highest, at): dot for at in range(column, after)}
    if limit is not None and x_scale.holds(limit):
        cells |= {(row, round(x_scale.position(limit) * (across - 1))): (LIMIT, "target") for row in range(down)}
    owners: dict[tuple[int, int], str] = {}
    for is_held_out in (False, True):
        for curve in curves:
            for point in curve.held_out if is_held_out else curve.training:
                at = place(point)
                is_shared = owners.setdefault(at, curve.sign) != curve.sign
                own = (curve.held_out_sign if is_held_out else curve.sign), curve.role
                cells[at] = (SEVERAL, "strong") if is_shared else own
    if cursor is not None:
        own_points = curves[0].training
        for point in own_points[:: max(len(own_points) // _NAMED, 1)]:
            row, column = place(point)
            for beside in (row, row + 1, row - 1):
                free = [(beside, column + 1 + at) for at in range(len(str(point.iteration)))]
                if 0 <= beside < down and free[-1][1] < across and not any(cells.get(at, dot) != dot for at in free):
                    cells |= {at: (digit, "muted") for at, digit in zip(free, str(point.iteration), strict=True)}
                    break
        cells[place(cursor)] = CURSOR, "cursor"
    values = ticks(y_scale, max(down // _LINES_A_TICK, 3))
    labels = {row_of(value): text for value, text in zip(values, tick_texts(values), strict=True)}
    return [
        [
            (labels.get(row, "").rjust(_LABELS)[:_LABELS], "muted"),
            (" ┤" if row in labels else " │", "muted"),
            *line_of(cells.get((row, column), (" ", "text")) for column in range(across)),
        ]
        for row in range(down)
    ] + _x_axis(x_scale, across)


def _finite(points: Iterable[Point]) -> list[Point]:
    return [point for point in points if math.isfinite(point.kl) and math.isfinite(point.score)]


def _x_axis(scale: Axis, across: int) -> list[Line]:
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
    indent = " " * _LABELS
    return [[(f"{indent} └{''.join(line)}", "muted")], [(f"{indent}  {''.join(labels)}", "muted")]]
