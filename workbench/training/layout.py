"""Layout of the Training pane: two large charts, a grid of small ones, and what lies below."""

from __future__ import annotations

from typing import NamedTuple

SIDE_BY_SIDE = 72  # columns in which two charts are wide enough beside each other
_CELL = 36  # columns of a cell of the grid
_NARROW_CELL = 28  # where the cells would not fit otherwise
_CHART = 5  # lines: the least of a chart
_FAIR_CHART = 8
_SHARE = 0.45  # of the lines, for charts, before the cells grow
_TALLEST_CELL = 4
_EVENTS = 13  # most lines of events
_HISTOGRAM = 3
_BESIDE = 110  # columns in which the scores fit beside the events


class Layout(NamedTuple):
    """Lines and columns of each part; 0 for a hidden part."""

    charts: tuple[int, ...]  # lines of each large chart
    stacked: bool  # one chart above the other
    columns: int  # of the grid
    rows: int
    cell: int  # lines of a cell
    time: int
    histogram: int
    events: int
    beside: bool  # the histogram is left of the events

    @property
    def above(self) -> int:
        """Lines of charts, grid and time."""
        charts = sum(self.charts) if self.stacked else max(self.charts, default=0)
        return charts + self.rows * self.cell + self.time

    @property
    def below(self) -> int:
        """Lines of histogram and events."""
        return max(self.histogram, self.events) if self.beside else self.histogram + self.events


def layout(width: int, height: int, *, large: int, small: int, scores: bool, events: int) -> Layout:
    """Share `height` lines of `width` columns out among `large` charts, `small` cells, and what lies below them.

    scores: there are scores for a histogram. events: lines that all events take, with their heading. Charts and grid
    come first; of the rest, each part gets a fair share, and the charts take all that is left.
    """
    stacked, columns = _arrangement(width, height, large, small, bool(events))
    rows, deep = -(-small // columns), large if stacked else min(large, 1)
    columns = -(-small // rows) if rows else 1  # no column without a cell
    chart = max(min(_CHART, (height - min(rows, 2)) // max(deep, 1)), 1)
    free = height - deep * chart
    rows = max(min(rows, free), 0)
    free -= rows
    beside = scores and width >= _BESIDE and events > 0
    time = min(free, 1)
    free -= time
    shown = min(events, free, 1)
    free -= shown
    cell, histogram = 1, 0

    def grow(wanted: int, now: int, each: int = 1) -> int:
        nonlocal free
        more = max(min(wanted - now, free // max(each, 1)), 0)
        free -= more * each
        return now + more

    shown = grow(min(events, 3), shown)
    chart = grow(_FAIR_CHART, chart, deep) if deep else chart
    if scores and free >= _HISTOGRAM:
        if beside:
            shown = histogram = grow(max(shown, _HISTOGRAM + 1), shown)
        else:
            histogram, free = _HISTOGRAM, free - _HISTOGRAM
    shown = grow(min(events, 6), shown)
    chart = grow(int(_SHARE * height / max(deep, 1)), chart, deep) if deep else chart
    cell = grow(2, cell, rows) if rows else cell
    shown = grow(min(events, _EVENTS), shown)
    cell = grow(_TALLEST_CELL, cell, rows) if rows and height >= 2 * _EVENTS else cell
    if deep:
        charts = [chart + free // deep] * large
        for place in range(free % deep):
            charts[place] += 1
    else:
        charts, shown = [], shown + free
    histogram = shown if beside and histogram else histogram
    return Layout(tuple(charts), stacked, columns, rows, cell, time, histogram, shown, beside and bool(histogram))


def _arrangement(width: int, height: int, large: int, small: int, events: bool) -> tuple[bool, int]:
    """Return whether to stack the charts, and the columns of the grid, so that all cells fit if possible."""
    narrow = width < SIDE_BY_SIDE and large > 1
    wanted = [(stacked, max(width // _CELL, 1)) for stacked in ((True, False) if narrow else (False,))]
    wanted.append((False, max(width // _NARROW_CELL, 1)))
    for stacked, columns in wanted:
        needed = _CHART * (large if stacked else min(large, 1)) - (-small // columns) + 1 + events
        if needed <= height:
            return stacked, columns
    return wanted[-1]
