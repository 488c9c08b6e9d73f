"""Charts of the selected run, and of the marked ones their score against their KL."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count

from rich.cells import cell_len

from trainer.runs.listing import PPO
from workbench.compare.compared_run import LETTERS, mean_of, short_names
from workbench.compare.frontier import Curve, Point, evaluation_points, means, plot
from workbench.kit.axes import scale_of, tick_rows
from workbench.kit.drawing import OVERLAYS
from workbench.kit.glyphs import DOTS_ACROSS, Canvas, with_axis
from workbench.run.metrics import MAIN, METRICS_OF_KIND, Metric
from workbench.run.run_listing import Glance
from workbench.text import Line, fit, fit_start, plain, visible

_LABELS = 8  # columns of the numbers beside a chart
_LEAST = 6  # lines of a chart with its heading; with fewer there is none
_SIDE_BY_SIDE = 100  # columns from which the two charts are beside each other
_LEAST_PLOT = 20  # columns


def curves_of(glances: Sequence[Glance], width: int, height: int) -> list[Line]:
    """Return charts of the two main metrics of a run, or the score against the KL of several, below their names.

    They are as large as there is room; there are none if that is too little, or nothing to draw.
    """
    if len(glances) > 1:
        return _score_against_kl(glances[:OVERLAYS], width, height)
    if not glances or len(glances[0].scores) < 2:
        return []
    [run] = glances
    fields = {metric.field: metric for metric in METRICS_OF_KIND.get(run.run.kind, ())}
    charts = [*zip(MAIN.get(run.run.kind, ()), (run.scores, run.kls), strict=False)]
    beside = width >= _SIDE_BY_SIDE
    across, down = ((width - 2) // 2, height) if beside else (width, (height - 1) // 2)
    if down < _LEAST or not charts:
        return []
    left, right = (curve_lines(fields[field], run.first, values, across, down) for field, values in charts)
    return (
        [[*one, ("  ", ""), *other] for one, other in zip(left, right, strict=True)] if beside else [*left, [], *right]
    )


def _score_against_kl(glances: Sequence[Glance], width: int, height: int) -> list[Line]:
    curves = []
    names = short_names([visible(glance.run.name) for glance in glances])
    for place, (glance, letter, name) in enumerate(zip(glances, LETTERS, names, strict=False), 1):
        points = list(map(Point, count(glance.first), glance.kls, glance.scores)) if glance.run.kind == PPO else []
        batches = means(points, mean_of(len(points)))
        held_out = evaluation_points(glance.evaluations)
        curves.append(Curve(f"{letter} {name}", batches, held_out, letter.lower(), letter, f"run-{place}", not batches))
    if not any(curve.compared for curve in curves) or height < _LEAST or width < _LEAST_PLOT:
        return []
    heading: Line = [("score against KL, nats  ", "muted")]
    room = max((width - len(heading[0][0])) // len(curves) - 2, 1)
    heading += [(f"{fit_start(curve.name, room)}  ", curve.role) for curve in curves]
    heading.append((fit_start("up and left is better", width - cell_len(plain(heading))), "muted"))
    return [heading, *plot(curves, width, height - 1)]


def curve_lines(metric: Metric, first: int, values: Sequence[float], width: int, height: int) -> list[Line]:
    """Return a chart in `height` lines of exactly `width` columns: heading, curve, iterations from `first` on."""
    values = [value * metric.factor for value in values]
    finite = [value for value in values if math.isfinite(value)]
    heading: Line = [(fit_start(metric.label, width), "muted")]
    last = f" {metric.with_unit(finite[-1]) if finite else '-'}"
    heading.append((fit(last, max(width - len(heading[0][0]), 0)), "strong"))
    scale = scale_of(((value, value) for value in finite), metric)
    columns = max(width - _LABELS, 1)
    canvas = Canvas(columns, max(height - 2, 1))
    dots = (columns * DOTS_ACROSS - 1) / max(len(values) - 1, 1)  # an iteration
    places = (round(place * dots) for place in range(len(values)))
    canvas.curve(zip(places, map(scale.position, values), strict=True), "series")
    plotted = with_axis(canvas.rows(), tick_rows(scale, canvas.height), _LABELS - 1)
    final = first + len(values) - 1
    iterations = f"{' ' * (_LABELS - 1)}└{first}{final:>{max(columns - len(str(first)), 0)}}"
    return [heading, *plotted, [(iterations, "axis")]]
