"""Details of the run under the cursor, where the terminal has room: its curves and what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import ClassVar

from workbench.columns import fit, fit_start
from workbench.home.glances import Glance
from workbench.kit.drawing import Drawn, component_classes, wrapped
from workbench.kit.glyphs import DOTS_ACROSS, DOTS_DOWN, Canvas
from workbench.kit.lines import Line
from workbench.kit.scale import scale_of, tick_texts
from workbench.numbers import duration, moment
from workbench.run.metrics import METRICS, Metric
from workbench.run.sentences import errors, state_text

_LABELS = 8  # columns of the numbers beside a chart
_LEAST = 4  # lines of a chart; with fewer there is none
_SIDE_BY_SIDE = 100  # columns from which the two charts are beside each other
_PROBLEM = 500  # characters, at most
_SHOWN = [next(metric for metric in METRICS if metric.field == field) for field in ("score_mean", "kl")]


class RunDetail(Drawn):
    """The selected run: its settings in words, then score and KL as large as there is room."""

    COMPONENT_CLASSES: ClassVar[set[str]] = component_classes(
        "text", "strong", "muted", "axis", "series", "ema", "alert"
    )
    _glance: Glance | None = None

    def show(self, glance: Glance | None) -> None:
        """Show a run; nothing for None."""
        if glance != self._glance:
            self._glance = glance
            self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        glance = self._glance
        if glance is None or width < 2:
            return []
        lines = _facts(glance, width)
        curves = [(metric, values) for metric, values in zip(_SHOWN, (glance.scores, glance.kls), strict=True)]
        if len(glance.scores) < 2:
            return lines[:height]
        room = height - len(lines) - 1
        if width >= _SIDE_BY_SIDE:
            if room >= _LEAST + 2:
                part = (width - 2) // 2
                left, right = (curve_lines(metric, values, glance.first, part, room) for metric, values in curves)
                lines += [[], *([*one, ("  ", ""), *other] for one, other in zip(left, right, strict=True))]
        elif room // 2 >= _LEAST + 2:
            for metric, values in curves:
                lines += [[], *curve_lines(metric, values, glance.first, width, (room - 1) // 2)]
        return lines[:height]


def _facts(glance: Glance, width: int) -> list[Line]:
    run = glance.run
    facts = [f"iteration {run.iteration} of {run.iterations}", f"model {run.model}" if run.model else ""]
    facts.append(f"started {moment(run.started)}" if run.started else "")
    if math.isfinite(glance.seconds):
        facts.append(f"{duration(glance.seconds)} an iteration")
    pieces = [(run.name, "strong"), (f"   {state_text(run)}\n", "text"), ("   ".join(filter(None, facts)), "muted")]
    lines = wrapped(pieces, width)
    wrong = [f"⚠ {errors(run.alarms)} when it ended"] if errors(run.alarms) and run.state == "done" else []
    wrong += [f"✖ {run.problem[:_PROBLEM]}"] if run.problem else []
    for problem in wrong:
        lines += wrapped([(problem, "alert")], width)
    return lines


def curve_lines(metric: Metric, values: Sequence[float], first: int, width: int, height: int) -> list[Line]:
    """Return a chart of `values` in `height` lines of exactly `width` columns: heading, curve, iterations."""
    finite = [value for value in values if math.isfinite(value)]
    last = metric.with_unit(finite[-1]) if finite else "-"
    heading: Line = [(fit_start(metric.label, width), "muted")]
    heading += [(fit(f" {last}", max(width - len(heading[0][0]), 0)), "strong")]
    scale = scale_of(((value, value) for value in finite), metric)
    columns, rows = max(width - _LABELS, 1), max(height - 2, 1)
    canvas = Canvas(columns, rows)
    points = _points(values, scale.position, columns * DOTS_ACROSS, rows * DOTS_DOWN)
    for one, other in pairwise(points):
        canvas.line(one, other, "series")
    ends = tick_texts([scale.high, scale.low])
    labels = [ends[0], *[""] * (rows - 2), ends[1]] if rows > 1 else ends[:1]
    lines = [heading]
    for label, cells in zip(labels, canvas.rows(), strict=True):
        lines.append([(f"{fit(label, _LABELS - 1, right=True)}│", "axis"), *cells])
    from_to = (str(first), str(first + len(values) - 1))
    lines.append([(f"{' ' * (_LABELS - 1)}└{from_to[0]}{from_to[1]:>{max(columns - len(from_to[0]), 0)}}", "axis")])
    return lines


def _points(
    values: Sequence[float], position: Callable[[float], float], across: int, down: int
) -> list[tuple[int, int]]:
    """Return the dots of the finite values, from left to right."""
    span = max(len(values) - 1, 1)
    return [
        (round(place / span * (across - 1)), round((1 - position(value)) * (down - 1)))
        for place, value in enumerate(values)
        if math.isfinite(value)
    ]
