"""Charts of characters: bars of eighths of a line, and curves of braille dots, two by four in a character."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from workbench.text import MISSING, Line, Piece, line_of

BARS = "▁▂▃▄▅▆▇█"
_ZERO = 3  # index of the bar in the middle of a diverging scale
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
