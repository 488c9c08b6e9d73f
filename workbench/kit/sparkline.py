"""Values as bars of eighths of a line: the shape of a metric over the iterations."""

from __future__ import annotations

import math
from collections.abc import Sequence

from workbench.kit.drawing import Line, line_of
from workbench.kit.scale import Scale
from workbench.run.history import Bucket
from workbench.run.metrics import Metric

_EIGHTHS = " ▁▂▃▄▅▆▇█"
MISSING = "×"  # NaN or infinite
LIMIT = "┄"


def sparkline(
    columns: Sequence[Bucket | None],
    values: Sequence[float],
    scale: Scale,
    metric: Metric,
    *,
    height: int = 1,
    cursor: int | None = None,
) -> list[Line]:
    """Return `height` lines with `values` as bars, one cell a column.

    × marks a bucket that lacks a number; a bucket that is None leaves a gap. Bars beyond the metric's threshold have
    the role of the threshold, which is drawn where it crosses no bar. No bar reaches the top of its line, so that rows
    stay apart.
    """
    limit = None
    if height > 1 and metric.threshold is not None and scale.holds(metric.threshold):
        limit = min(int(scale.position(metric.threshold) * height), height - 1)
    stacks = []
    for place, (bucket, value) in enumerate(zip(columns, values, strict=True)):
        cells = bar(scale.position(value), height)
        role = "target" if metric.beyond(value) else "series"
        if bucket is not None and bucket.missing:
            cells, role = [MISSING, *cells[1:]], "missing"
        stack = [(cell, role) for cell in cells]
        if limit is not None and cells[limit] == " ":
            stack[limit] = (LIMIT, "target")
        if place == cursor:
            stack = [(cell if cell != " " else "│", "cursor") for cell, _ in stack]
        stacks.append(stack)
    return [line_of(stack[level] for stack in stacks) for level in reversed(range(height))]


def bar(position: float, height: int) -> list[str]:
    """Return the cells of a bar, lowest first; blank for NaN."""
    if math.isnan(position):
        return [" "] * height
    eighths = 1 + round(position * (8 * height - 2))
    return [_EIGHTHS[min(max(eighths - 8 * level, 0), 8)] for level in range(height)]
