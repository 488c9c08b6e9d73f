"""Charts of characters: bars of eighths of a line, and curves of braille dots, two by four in a character."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from workbench.text import MISSING, Line, Piece, fit_start, line_of

BARS = "▁▂▃▄▅▆▇█"
_ZERO = 3  # index of the bar in the middle of a diverging scale
_LABELS, _WIDEST = 6, 80  # columns of a calibration: its labels, and all bars at most
_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # of the dots, added to U+2800; by column and row
DOTS_ACROSS, DOTS_DOWN = 2, 4


def block(position: float, *, diverging: bool = False) -> str:
    """Return one of eight blocks that rise with `position`, 0 to 1; × for NaN. On a diverging scale, ▄ is near zero."""
    if math.isnan(position):
        return MISSING
    if not diverging:
        return BARS[math.floor(position * (len(BARS) - 1) + 0.5)]
    reach = _ZERO if position < 0.5 else len(BARS) - 1 - _ZERO
    return BARS[math.floor(_ZERO + (2 * position - 1) * reach + 0.5)]


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw the last `width` values as bars between their least and greatest; a gap where one is not finite.

    Values that do not differ give bars of middle height, not noise blown up to full height.
    """
    shown = values[-width:] if width > 0 else []
    finite = [v for v in shown if math.isfinite(v)]
    if not finite:
        return " " * len(shown)
    low, high = min(finite), max(finite)
    span = high - low
    if span <= 1e-6 * max(abs(low), abs(high)):
        return "".join(BARS[_ZERO] if math.isfinite(v) else " " for v in shown)
    return "".join(block((v - low) / span) if math.isfinite(v) else " " for v in shown)


def bar(position: float, height: int) -> list[str]:
    """Return the cells of a bar, lowest first; blank for NaN."""
    if math.isnan(position):
        return [" "] * height
    eighths = 1 + round(position * (8 * height - 2))
    return [f" {BARS}"[min(max(eighths - 8 * level, 0), 8)] for level in range(height)]


def bar_lines(counts: Sequence[int], most: int, height: int, columns: int) -> list[str]:
    """Return a bar of `columns` columns for each count, as `height` lines from the top; only `most` is at full height.

    There is no bar for a count of 0.
    """
    stacks = [bar(count / most, height) if count else [" "] * height for count in counts]
    return ["".join(stack[level] * columns for stack in stacks) for level in reversed(range(height))]


def dot_row(position: float, height: int) -> int:
    """Return the dots above a position, from 0, the bottom, to 1, on a plot of `height` lines."""
    return round((1 - position) * (DOTS_DOWN * height - 1))


def row_of(position: float, height: int) -> int:
    """Return the line of a position on a plot of `height` lines, counted from the top."""
    return dot_row(position, height) // DOTS_DOWN


def with_axis(plot: Sequence[Sequence[Piece]], labels: Mapping[int, str], width: int) -> list[Line]:
    """Return the rows of a plot behind their y axis; the labels, by row, have `width` columns."""
    return [
        [(f"{labels.get(row, '')[:width]:>{width}}", "muted"), ("┤" if row in labels else "│", "axis"), *line_of(cells)]
        for row, cells in enumerate(plot)
    ]


def calibration_bars(
    bars: Iterable[tuple[int, float, float, int]],
    places: int,
    scale: tuple[str, str],
    axis: tuple[str, str, str],
    width: int,
    height: int,
) -> list[Line]:
    """Return at most `height` lines of at most `width` columns: bars with ◂ at what was predicted, counts and axis.

    The ◂ are the diagonal, where the bars of a perfect prediction end.

    bars: the place among `places`, predicted and observed as positions from 0 to 1, and a count. scale: low and high
    end. axis: what is counted, and the first and the last prediction.
    """
    left = max(_LABELS, *map(len, scale))
    across, rows = min(width - left - 1, _WIDEST) // places, max(height - 2, 1)
    if across < 2:
        return []
    columns = across * places
    stacks: list[list[Piece]] = [[(" ", "text")] * columns for _ in range(rows)]
    counts, marks = [" "] * columns, [""] * places
    for place, predicted, observed, found in bars:
        for row, cell in enumerate(reversed(bar(observed, rows))):
            for column in range(place * across, (place + 1) * across - 1):
                stacks[row][column] = (cell, "policy")
        stacks[min(int((1 - predicted) * rows), rows - 1)][(place + 1) * across - 1] = ("◂", "target")
        count = str(found) if found < 1000 else f"{found // 1000}k"
        marks[place] = count if len(count) < across else "+"
    for place, text in enumerate(marks):
        counts[place * across : place * across + len(text)] = text
    counted, first, last = axis
    ends = first + "predicted".center(columns - len(first) - len(last)) + last
    return [
        *with_axis(stacks, {0: scale[1], rows - 1: scale[0]} if rows > 1 else {}, left),
        [(counted.rjust(left) + " ", "muted"), ("".join(counts), "muted")],
        [(fit_start(" " * (left + 1) + ends, width), "muted")],
    ][:height]


class Canvas:
    """Dots on `width` by `height` characters, with dot (0, 0) at the top left.

    The dots of a character share one role, the one that was drawn last.
    """

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._dots = [[0] * width for _ in range(height)]
        self._roles = [["text"] * width for _ in range(height)]

    def column(self, x: int, top: int, bottom: int, role: str) -> None:
        """Draw dots at `x` from `top` down to `bottom`, both included; skip those outside the canvas."""
        across, part = divmod(x, DOTS_ACROSS)
        if not 0 <= across < self.width:
            return
        top, bottom = max(top, 0), min(bottom, self.height * DOTS_DOWN - 1)
        if top > bottom:
            return
        for row in range(top // DOTS_DOWN, bottom // DOTS_DOWN + 1):
            first = row * DOTS_DOWN
            self._dots[row][across] |= sum(_BITS[part][max(top - first, 0) : bottom - first + 1])
            self._roles[row][across] = role

    def line(self, start: tuple[int, int], end: tuple[int, int], role: str, *, dotted: bool = False) -> None:
        """Draw a line from `start` to `end`, x ascending, without gaps unless it is dotted.

        Neighbouring columns of different heights are both filled to the middle between them.
        """
        (x, y), (end_x, end_y) = start, end
        steps = end_x - x
        if steps <= 0:
            self.column(x, min(y, end_y), max(y, end_y), role)
            return
        before = y
        for step in range(1, steps + 1):
            after = y + round((end_y - y) * step / steps)
            if dotted:
                if (x + step) % DOTS_ACROSS == 0:
                    self.column(x + step, after, after, role)
                continue
            half = (before + after) // 2
            self.column(x + step - 1, min(before, half), max(before, half), role)
            self.column(x + step, min(half, after), max(half, after), role)
            before = after

    def curve(self, points: Iterable[tuple[int, float]], role: str, *, dotted: bool = False) -> None:
        """Draw a line through points: x in dots, ascending, and a position from 0, the bottom, to 1; NaN is a gap."""
        before: tuple[int, int] | None = None
        for x, position in points:
            here = None if math.isnan(position) else (x, dot_row(position, self.height))
            if here is not None:
                self.line(before or here, here, role, dotted=dotted)
            before = here

    def rows(self) -> list[list[Piece]]:
        """Return the characters with their roles, row by row; a space where nothing is drawn."""
        return [
            [(chr(0x2800 + dots) if dots else " ", role) for dots, role in zip(dots_row, roles, strict=True)]
            for dots_row, roles in zip(self._dots, self._roles, strict=True)
        ]
