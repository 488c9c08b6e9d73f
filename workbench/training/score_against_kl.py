"""Score against KL: what each run reached at which distance from its reference, this run and the marked ones.

A higher score says little if it was bought with a higher KL; see `workbench.compare.frontier`.
"""

from __future__ import annotations

from collections.abc import Sequence

from workbench.compare.compared_run import mean_of
from workbench.compare.frontier import BEST, CURSOR, LIMIT, Curve, Point, batch_points, evaluation_points, plot
from workbench.run.view import RunView
from workbench.text import Line, fit_end, fit_start, number, plain, visible
from workbench.training.chart import LETTERS, fitting

_SIGN, _HELD_OUT = "•", "◇"  # of this run
_YOUNG = 20  # iterations: of fewer, each is a point of its own


def curve_of(view: RunView, other: int | None = None, name: str = "") -> Curve:
    """Return the curve of a run: means over some iterations, because one batch is mostly noise.

    other: number of a marked run; None for this one.
    """
    size = 1 if len(view.history) < _YOUNG else mean_of(len(view.history))
    training, held_out = batch_points(view.history, size), evaluation_points(view.evaluations)
    if other is None:
        return Curve("this run", training, held_out, _SIGN, _HELD_OUT, "policy", on_held_out=not training)
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
    """Return the plot as at most `height` lines of at most `width` columns: title, plot, axis and legend.

    curves: of this run, then of the marked ones. iteration: at the cursor; None for the newest. limit: of the KL.
    """
    here = point_at(curves[0], iteration) if curves else None
    title: Line = [(" score against KL", "strong")]
    if not any(curve.compared for curve in curves):
        return [title, [], [(fit_start(" No iteration with a score and a KL yet.", width), "muted")]][:height]
    if here is not None and len(plain(title)) + len(point_text(here)) + 3 <= width:
        title.append((f"   {point_text(here)}", "text"))
    room = max(width // len(curves) - 6, 1)
    legend: Line = [
        (f" {_SIGN} this run", "policy"),
        *((f"  {fit_end(curve.name, min(room, 24))}", curve.role) for curve in curves[1:]),
        (f"  {CURSOR} cursor", "cursor"),
        (f"  {_HELD_OUT} and capitals: held-out prompts", "muted"),
        (f"  {BEST} best so far", "muted"),
        *([(f"  {LIMIT} KL {limit:g}", "target")] if limit is not None else []),
    ]
    lines = plot(curves, width, max(height - 2, 3), cursor=here, limit=limit)
    return [title, *lines, fitting(legend, width)][:height]
