"""A canvas of dots, two by four in a character."""

from __future__ import annotations

from workbench.kit.drawing import Piece

_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # of the dots, added to U+2800; by column and row
DOTS_ACROSS, DOTS_DOWN = 2, 4


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
        for y in range(max(top, 0), min(bottom, self.height * DOTS_DOWN - 1) + 1):
            row, bit = divmod(y, DOTS_DOWN)
            self._dots[row][across] |= _BITS[part][bit]
            self._roles[row][across] = role

    def line(self, start: tuple[int, int], end: tuple[int, int], role: str) -> None:
        """Draw a line from `start` to `end`, x ascending, without gaps.

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
            half = (before + after) // 2
            self.column(x + step - 1, min(before, half), max(before, half), role)
            self.column(x + step, min(half, after), max(half, after), role)
            before = after

    def rows(self) -> list[list[Piece]]:
        """Return the characters with their roles, row by row; a space where nothing is drawn."""
        return [
            [(chr(0x2800 + dots) if dots else " ", role) for dots, role in zip(dots_row, roles, strict=True)]
            for dots_row, roles in zip(self._dots, self._roles, strict=True)
        ]
