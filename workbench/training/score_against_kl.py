"""Score against KL: what each run reached at which distance from its reference, this run and the marked ones.

A higher score says little if it was bought with a higher KL; see `workbench.compare.frontier`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len

from workbench.compare.compared_run import mean_of
from workbench.compare.frontier import (
    BEST,
    CURSOR,
    LIMIT,
    Curve,
    Point,
    batch_points,
    best_scores,
    evaluation_points,
    levels,
    plot,
)
from workbench.kit.drawing import ROLES, Drawn, component_classes
from workbench.numbers import number
from workbench.run.view import RunView
from workbench.text import Line, fit_end, fit_start, plain, visible
from workbench.training.chart import LETTERS

_SIGN, _HELD_OUT = "•", "◇"  # of this run
_YOUNG = 20  # iterations: of fewer, each is a point of its own
_TABLE_FROM = 14  # lines of a plot that leaves room for the table
_CELL = 9  # columns of a number of the table


def curve_of(view: RunView, other: int | None = None, name: str = "") -> Curve:
    """Return the curve of a run: means over some iterations, because one batch is mostly noise.

    other: number of a marked run; None for this one.
    """
    size = 1 if len(view.history) < _YOUNG else mean_of(len(view.history))
    training, held_out = batch_points(view.history, size), evaluation_points(view)
    if other is None:
        return Curve("this run", training, held_out, _SIGN, _HELD_OUT, "series", on_held_out=not training)
    sign, role = LETTERS[other], f"run-{other + 1}"
    return Curve(f"{sign} {visible(name)}", training, held_out, sign, sign.upper(), role, on_held_out=not training)


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
    here = point_at(curves[0], iteration) if curves else None
    title: Line = [(" score against KL", "strong")]
    if not any(curve.compared for curve in curves):
        return [title, [], [(fit_start(" No iteration with a score and a KL yet.", width), "muted")]][:height]
    if here is not None and len(plain(title)) + len(point_text(here)) + 3 <= width:
        title.append((f"   {point_text(here)}", "text"))
    table = _best_scores(curves, width) if height >= _TABLE_FROM + len(curves) else []
    lines = plot(curves, width, max(height - 2 - len(table), 3), cursor=here, limit=limit)
    return [title, *lines, _legend(curves, limit, width), *table][:height]


def _legend(curves: Sequence[Curve], limit: float | None, width: int) -> Line:
    room = max(width // len(curves) - 6, 1)
    pieces: Line = [
        (f" {_SIGN} this run", "series"),
        *((f"  {fit_end(curve.name, min(room, 24))}", curve.role) for curve in curves[1:]),
        (f"  {CURSOR} cursor", "muted"),
        (f"  {_HELD_OUT} and capitals: held-out prompts", "muted"),
        (f"  {BEST} best so far", "muted"),
        *([(f"  {LIMIT} KL {limit:g}", "target")] if limit is not None else []),
    ]
    line: Line = []
    for text, role in pieces:
        if sum(cell_len(other) for other, _ in line) + cell_len(text) <= width:
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
    for curve in curves:
        scores = (best_scores([curve], kl) for kl in kls)
        cells = "".join((number(s, width=_CELL - 1) if math.isfinite(s) else "-").rjust(_CELL) for s in scores)
        lines.append([(fit_end(f" {curve.name}", len(heading)).ljust(len(heading)), curve.role), (cells, "text")])
    return lines


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
