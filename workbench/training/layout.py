"""How the training pane's lines are shared out."""

from __future__ import annotations

from typing import NamedTuple

from workbench.training.metric_row import STACKED_BELOW

_HISTOGRAM = (3, 4)  # lines: least, and where there is plenty
_LEAST_TIMELINE = 2  # lines, the heading included
_MOST_TIMELINE = 13
_TIMELINE_BESIDE = 6  # lines that it has before rows grow whose sparklines are wide already
_TALLEST_ROW = 4
_PLENTY = 40  # lines


class Shares(NamedTuple):
    """Lines of each part; 0 for one that is not shown. The rows' part takes what the others leave."""

    row: int  # of a metric
    rows: int  # of all metrics, their heading included
    histogram: int
    timeline: int


def shares(height: int, width: int, metrics: int, *, scores: bool, marks: int) -> Shares:
    """Share out `height` lines of `width` columns among `metrics` rows and, where there are any, scores and marks.

    Every row gets a line before the others get any; rows grow next, and what is left goes to the timeline.
    """
    metrics = max(metrics, 1)
    free = max(height - 1 - metrics, 0)
    timeline = _LEAST_TIMELINE if marks and free >= _LEAST_TIMELINE else 0
    histogram = 0
    if scores and free - timeline >= _HISTOGRAM[0]:
        histogram = _HISTOGRAM[height >= _PLENTY]
    beside = timeline if width < STACKED_BELOW else min(_TIMELINE_BESIDE, 1 + marks)
    row = min(max((height - 1 - histogram - beside) // metrics, 1), _TALLEST_ROW)
    if timeline:
        timeline = max(timeline, min(height - 1 - row * metrics - histogram, 1 + marks, _MOST_TIMELINE))
    return Shares(row, height - histogram - timeline, histogram, timeline)
