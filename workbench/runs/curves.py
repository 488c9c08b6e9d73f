"""Score and KL of the selected or the marked runs as charts, as large as there is room."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

from rich.cells import cell_len

from workbench.kit.axes import scale_of, tick_texts, ticks
from workbench.kit.drawing import OVERLAYS, Drawn, component_classes
from workbench.kit.glyphs import DOTS_ACROSS, DOTS_DOWN, Canvas
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


def curves_of(runs: Sequence[tuple[str, Glance]], width: int, height: int) -> list[Line]:
    """Return charts of score and KL in at most `height` lines; none if there is no room, or nothing to draw.

    runs: each with the role of its curves.
    """
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
    columns, rows = max(width - _LABELS, 1), max(height - 2, 1)
    first = min(begin for _, begin, _ in curves)
    final = max(begin + len(values) - 1 for _, begin, values in curves)
    canvas = Canvas(columns, rows)
    for role, begin, values in reversed(curves):  # the first one lies on top
        places = [(begin - first + place) / max(final - first, 1) for place in range(len(values))]
        across, down = columns * DOTS_ACROSS - 1, rows * DOTS_DOWN - 1
        points = [
            (round(place * across), round((1 - scale.position(value)) * down))
            for place, value in zip(places, values, strict=True)
            if math.isfinite(value)
        ]
        for one, other in pairwise(points):
            canvas.line(one, other, role)
    marks = ticks(scale, max(rows // 3, 2))
    labels = [""] * rows
    for value, text in zip(marks, tick_texts(marks), strict=True):
        labels[round((1 - scale.position(value)) * (rows - 1))] = text
    lines = [heading]
    for label, cells in zip(labels, canvas.rows(), strict=True):
        lines.append([(f"{fit(label, _LABELS - 1, right=True)}│", "axis"), *cells])
    lines.append([(f"{' ' * (_LABELS - 1)}└{first}{final:>{max(columns - len(str(first)), 0)}}", "axis")])
    return lines


class RunCurves(Drawn):
    """Score and KL of the selected run, or of the marked ones in colours of their own, as large as there is room."""

    COMPONENT_CLASSES: ClassVar[set[str]] = component_classes("text", "muted", "strong", "axis", "series", *_ROLES)
    _glances: Sequence[Glance] = ()

    def show(self, glances: Sequence[Glance]) -> None:
        """Show one run, or compare several."""
        if glances != self._glances:
            self._glances = glances
            self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        if len(self._glances) < 2:
            return curves_of([("series", glance) for glance in self._glances], width, height)
        runs = list(zip(_ROLES, self._glances, strict=False))
        if not (charts := curves_of(runs, width, height - 1)):
            return []
        names: Line = []
        room = width // len(runs) - 1
        for role, glance in runs:
            names += [(fit_start(f"━ {visible(glance.run.name)}", room), role), ("  ", "")]
        while sum(cell_len(text) for text, _ in names) > width:
            names.pop()
        return [names, *charts]
