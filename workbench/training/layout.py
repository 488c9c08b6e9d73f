"""Division of the training pane's lines among its parts."""

from __future__ import annotations

from typing import NamedTuple

from workbench.training.metric_row import STACKED_BELOW

_HISTOGRAM = (3, 4)  # lines: at least, and in a tall pane
_LEAST_TIMELINE = 2  # lines, including the heading
_MOST_TIMELINE = 13
_TIMELINE_BESIDE = 6  # lines of the timeline before rows with wide sparklines grow
_TALLEST_ROW = 4
_PLENTY = 40  # lines of a tall pane


class Shares(NamedTuple):
    """Lines of each part; 0 for a hidden part. The rows take what the other parts leave."""

    row: int  # of a metric
    rows: int  # of all metrics, including their heading
    histogram: int
    timeline: int


def shares(height: int, width: int, metrics: int, *, scores: bool, marks: int) -> Shares:
    """Divide `height` lines of `width` columns among `metrics` rows and, if there are any, scores and marks.

    Every row gets a line before the other parts get any. Rows grow next, and the timeline gets what is left.
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
