"""Score against KL: what each run reached at which distance from its reference, this run and the marked ones.

A higher score says little if it was bought with a higher KL; see `workbench.compare.frontier`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len

from workbench.columns import fit_end, fit_start
from workbench.compare.compared_run import mean_of
from workbench.compare.frontier import (
    AXES,
    LABELS,
    LINES_A_TICK,
    Point,
    batch_points,
    best,
    evaluation_points,
    levels,
    x_axis,
)
from workbench.kit.drawing import ROLES, Drawn, component_classes
from workbench.kit.glyphs import DOTS_ACROSS, DOTS_DOWN, Canvas
from workbench.kit.lines import Line, Piece, line_of, plain
from workbench.kit.scale import Axis, scale_of, tick_texts, ticks
from workbench.numbers import number
from workbench.run.view import RunView
from workbench.text import visible
from workbench.training.chart import LETTERS

_HELD_OUT = "◇"
_HERE = "●"
_LIMIT = "┊"
_YOUNG = 20  # iterations: of fewer, each is a point of its own
_TABLE_FROM = 14  # lines of a plot that leaves room for the table
_TIMES = 5  # iterations that are named on the curve of this run
_BESIDE = ((0, 2), (-1, 0), (1, 0), (-2, 0), (2, 0))  # rows and columns from a point to the name of its iteration
_CELL = 9  # columns of a number of the table


@dataclass(frozen=True, slots=True)
class Curve:
    """The points of a run in order of iterations. name: safe to print."""

    name: str
    points: Sequence[Point]  # of training batches
    held_out: Sequence[Point]

    @property
    def compared(self) -> Sequence[Point]:
        """Points that count for the best scores: of the training batches, if there are any."""
        return self.points or self.held_out


def curve_of(name: str, view: RunView) -> Curve:
    """Return the curve of a run: means over some iterations, because one batch is mostly noise."""
    size = 1 if len(view.history) < _YOUNG else mean_of(len(view.history))
    return Curve(visible(name), batch_points(view.history, size), evaluation_points(view))


def point_at(curve: Curve, iteration: int | None) -> Point | None:
    """Return the point of a run that is nearest to `iteration`, the newest for None; None without a point."""
    if iteration is None or not curve.compared:
        return curve.compared[-1] if curve.compared else None
    return min(curve.compared, key=lambda point: abs(point.iteration - iteration))


def point_text(point: Point) -> str:
    """Return a point in words."""
    return f"iteration {point.iteration}: score {number(point.score)} at a KL of {number(point.kl, 2)} nats/seq"


def score_against_kl(
    curves: Sequence[Curve], iteration: int | None, limit: float | None, width: int, height: int
) -> list[Line]:
    """Return the plot as at most `height` lines of at most `width` columns: title, plot, axis, legend and best scores.

    curves: of this run, then of the marked ones. iteration: at the cursor; None for the newest. limit: of the KL.
    """
    points = [point for curve in curves for point in (*curve.points, *curve.held_out)]
    here = point_at(curves[0], iteration) if curves else None
    title: Line = [(" score against KL", "strong")]
    if not points:
        return [title, [], [(fit_start(" No iteration with a score and a KL yet.", width), "muted")]][:height]
    if here is not None and len(plain(title)) + len(point_text(here)) + 3 <= width:
        title.append((f"   {point_text(here)}", "text"))
    table = _best_scores(curves, width) if height >= _TABLE_FROM + len(curves) else []
    down, across = max(height - 4 - len(table), 1), max(width - LABELS - 2, 1)
    x_scale = scale_of(((point.kl, point.kl) for point in points), AXES["kl"]._replace(threshold=limit))
    y_scale = scale_of(((point.score, point.score) for point in points), AXES["score_mean"])
    cells = _cells(curves, here, limit, x_scale, y_scale, across, down)
    values = ticks(y_scale, max(down // LINES_A_TICK, 2))
    labels = {
        round((1 - y_scale.position(value)) * (down - 1)): text
        for value, text in zip(values, tick_texts(values), strict=True)
    }
    plot = [
        [
            (labels.get(row, "").rjust(LABELS)[:LABELS], "muted"),
            (" ┤" if row in labels else " │", "axis"),
            *line_of(line),
        ]
        for row, line in enumerate(cells)
    ]
    return [title, *plot, *x_axis(x_scale, across), _legend(curves, limit, width), *table][:height]


def _cells(
    curves: Sequence[Curve],
    here: Point | None,
    limit: float | None,
    x_scale: Axis,
    y_scale: Axis,
    across: int,
    down: int,
) -> list[list[Piece]]:
    canvas = Canvas(across, down)

    def place(point: Point) -> tuple[int, int]:
        x, y = x_scale.position(point.kl), 1 - y_scale.position(point.score)
        return round(x * (DOTS_ACROSS * across - 1)), round(y * (DOTS_DOWN * down - 1))

    _draw_frontier(canvas, sorted({place(point) for curve in curves for point in curve.compared}))
    for count, curve in reversed(list(enumerate(curves))):
        for start, end in itertools.pairwise(map(place, curve.points)):
            canvas.line(min(start, end), max(start, end), _role(count))
    rows = canvas.rows()

    def put(point: Point, text: str, role: str, offsets: Sequence[tuple[int, int]] = ()) -> None:
        """Write `text` at a point, or at the first free place of some rows and columns beside it."""
        x, y = place(point)
        for down_by, right_by in offsets or ((0, 0),):
            row, column = y // DOTS_DOWN + down_by, x // DOTS_ACROSS + right_by
            here = slice(column, column + len(text))
            fits = 0 <= row < down and 0 <= column <= across - len(text)
            if fits and (not offsets or all(cell == " " for cell, _ in rows[row][here])):
                rows[row][here] = [(character, role) for character in text]
                return

    if limit is not None and x_scale.holds(limit):
        column = round(x_scale.position(limit) * (across - 1))
        for row in rows:
            row[column] = (_LIMIT, "target") if row[column][0] == " " else row[column]
    for count, curve in reversed(list(enumerate(curves))):
        for point in curve.held_out:
            put(point, _HELD_OUT, _role(count))
        if count and curve.compared:
            put(curve.compared[-1], LETTERS[count - 1], _role(count))
    own = curves[0].points
    for point in own[:: max(len(own) // _TIMES, 1)]:
        put(point, str(point.iteration), "muted", _BESIDE)
    if here is not None:
        put(here, _HERE, "cursor")
    return rows


def _draw_frontier(canvas: Canvas, places: Sequence[tuple[int, int]]) -> None:
    """Dot the best score up to each KL. places: of all points, by rising KL."""
    highest = math.inf
    for (x, y), (after, _) in itertools.pairwise([*places, (canvas.width * DOTS_ACROSS, 0)]):
        highest = min(highest, y)
        for at in range(x, after):
            if at % (2 * DOTS_ACROSS) == 0:
                canvas.column(at, int(highest), int(highest), "axis")


def _legend(curves: Sequence[Curve], limit: float | None, width: int) -> Line:
    line: Line = [(" ─ this run", _role(0))]
    rest: Line = [(f"  {_HERE} cursor", "muted")]
    rest += [(f"  {_HELD_OUT} held-out prompts", "muted")] if any(curve.held_out for curve in curves) else []
    rest += [("  ⠁⠁ best so far", "muted")]
    rest += [(f"  {_LIMIT} KL {limit:g}", "target")] if limit is not None else []
    room = (width - len(plain(line))) // max(len(curves) - 1, 1) - 4
    for count, curve in enumerate(curves[1:], 1):
        line.append((f"  {LETTERS[count - 1]} {fit_end(curve.name, min(room, 24))}", _role(count)))
    used = sum(cell_len(text) for text, _ in line)
    for text, role in rest:
        used += cell_len(text)
        if used <= width:
            line.append((text, role))
    return line


def _best_scores(curves: Sequence[Curve], width: int) -> list[Line]:
    """Return a table of the best score of each run at a KL of at most so much; empty if no KL is above 0."""
    kls = levels(point for curve in curves for point in curve.compared)
    heading = " best score at a KL up to"
    kls = kls[-max((width - len(heading)) // _CELL, 0) :] if width > len(heading) + _CELL else []
    if not kls:
        return []
    lines: list[Line] = [[(heading, "muted"), ("".join(f"{kl:{_CELL}g}" for kl in kls), "muted")]]
    for count, curve in enumerate(curves):
        name = f" {LETTERS[count - 1]} {curve.name}" if count else " this run"
        found = [best(curve.compared, kl) for kl in kls]
        cells = "".join((number(point.score, width=_CELL - 1) if point else "-").rjust(_CELL) for point in found)
        lines.append([(fit_end(name, len(heading)).ljust(len(heading)), _role(count)), (cells, "text")])
    return lines


def _role(count: int) -> str:
    return f"run-{count}" if count else "series"


class ScoreAgainstKL(Drawn, can_focus=True):
    """Plot of score against KL. The pane handles the keys."""

    COMPONENT_CLASSES: ClassVar[set[str]] = component_classes(*ROLES)
    _curves: Sequence[Curve] = ()
    _iteration: int | None = None
    _limit: float | None = None

    @property
    def point(self) -> Point | None:
        """Point of this run at the cursor."""
        return point_at(self._curves[0], self._iteration) if self._curves else None

    def show(self, curves: Sequence[Curve], iteration: int | None, limit: float | None) -> None:
        """Replace the curves, that of this run first; see `score_against_kl`."""
        self._curves, self._iteration, self._limit = curves, iteration, limit
        self.redraw()

    def draw(self, width: int, height: int) -> list[Line]:
        return score_against_kl(self._curves, self._iteration, self._limit, width, height)
