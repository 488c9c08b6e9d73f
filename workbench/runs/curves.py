"""Score and KL of the selected run, or of the marked ones in colours of their own, as charts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.cells import cell_len

from workbench.kit.axes import scale_of, tick_rows
from workbench.kit.drawing import OVERLAYS
from workbench.kit.glyphs import DOTS_ACROSS, Canvas, with_axis
from workbench.run.metrics import METRICS, Metric
from workbench.run.run_listing import Glance
from workbench.text import Line, fit, fit_start, visible

_LABELS = 8  # columns of the numbers beside a chart
_LEAST = 6  # lines of a chart with its heading; with fewer there is none
_SIDE_BY_SIDE = 100  # columns from which the two charts are beside each other
_SCORE, _KL = (next(metric for metric in METRICS if metric.field == field) for field in ("score_mean", "kl"))
_ROLES = tuple(f"run-{number}" for number in range(1, OVERLAYS + 1))

Curve = tuple[str, int, Sequence[float]]
"""A role, the iteration of the first value, and the values."""


def curves_of(glances: Sequence[Glance], width: int, height: int) -> list[Line]:
    """Return charts of score and KL in at most `height` lines, below the names where there are several runs.

    They are as large as there is room; there are none if that is too little, or nothing to draw.
    """
    if len(glances) < 2:
        return _charts([("series", glance) for glance in glances], width, height)
    runs = list(zip(_ROLES, glances, strict=False))
    if not (charts := _charts(runs, width, height - 1)):
        return []
    names: Line = []
    room = width // len(runs) - 1
    for role, glance in runs:
        names += [(fit_start(f"━ {visible(glance.run.name)}", room), role), ("  ", "")]
    while sum(cell_len(text) for text, _ in names) > width:
        names.pop()
    return [names, *charts]


def _charts(runs: Sequence[tuple[str, Glance]], width: int, height: int) -> list[Line]:
    """Return both charts beside each other or one above the other. runs: each with the role of its curves."""
    drawn = [(role, glance) for role, glance in runs if len(glance.scores) > 1]
    if not drawn:
        return []
    scores: list[Curve] = [(role, glance.first, glance.scores) for role, glance in drawn]
    kls: list[Curve] = [(role, glance.first, glance.kls) for role, glance in drawn]
    if width >= _SIDE_BY_SIDE:
        if height < _LEAST:
            return []
        part = (width - 2) // 2
        left, right = curve_lines(_SCORE, scores, part, height), curve_lines(_KL, kls, part, height)
        return [[*one, ("  ", ""), *other] for one, other in zip(left, right, strict=True)]
    part = (height - 1) // 2
    if part < _LEAST:
        return []
    return [*curve_lines(_SCORE, scores, width, part), [], *curve_lines(_KL, kls, width, part)]


def curve_lines(metric: Metric, curves: Sequence[Curve], width: int, height: int) -> list[Line]:
    """Return a chart in `height` lines of exactly `width` columns: heading, curves, iterations."""
    finite = [value for _, _, values in curves for value in values if math.isfinite(value)]
    heading: Line = [(fit_start(metric.label, width), "muted")]
    last = ""
    if len(curves) == 1:  # of several, it is unclear whose it is
        last = f" {metric.with_unit(finite[-1]) if finite else '-'}"
    heading += [(fit(last, max(width - len(heading[0][0]), 0)), "strong")]
    scale = scale_of(((value, value) for value in finite), metric)
    columns = max(width - _LABELS, 1)
    first = min(begin for _, begin, _ in curves)
    final = max(begin + len(values) - 1 for _, begin, values in curves)
    canvas = Canvas(columns, max(height - 2, 1))
    for role, begin, values in reversed(curves):  # the first one lies on top
        dots = (columns * DOTS_ACROSS - 1) / max(final - first, 1)  # an iteration
        places = (round((begin - first + place) * dots) for place in range(len(values)))
        canvas.curve(zip(places, map(scale.position, values), strict=True), role)
    plot = with_axis(canvas.rows(), tick_rows(scale, canvas.height), _LABELS - 1)
    iterations = f"{' ' * (_LABELS - 1)}└{first}{final:>{max(columns - len(str(first)), 0)}}"
    return [heading, *plot, [(iterations, "axis")]]
