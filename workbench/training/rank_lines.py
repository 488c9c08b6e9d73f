"""Lines of the ranks of a run on several processes: how long each worked and waited in the newest iteration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len

from trainer.plurals import counted
from workbench.columns import fit_start, padded
from workbench.kit.drawing import Drawn, component_classes
from workbench.kit.lines import Line
from workbench.run.rank_numbers import RankNumbers

_MOST = 8  # lines
_SHARE = 5  # the part of the pane's lines that they take: one in five
_LEAST_BAR = 6  # columns
_LONGEST_BAR = 60


def lines_wanted(ranks: Sequence[RankNumbers], room: int) -> int:
    """Return how many of `room` lines the ranks take."""
    return min(len(ranks), _MOST, max(room // _SHARE, 1))


def rank_lines(ranks: Sequence[RankNumbers], width: int, height: int) -> list[Line]:
    """Return a line for each rank, with a bar of the time that it worked, in at most `height` lines.

    Where they do not suffice, the last line counts the ranks that have none. Narrow lines lack the last numbers.
    """
    if not ranks or height < 1:
        return []
    shown = ranks if len(ranks) <= height else ranks[: height - 1]
    names = min(max(cell_len(rank.name) for rank in ranks), max(width // 3, 8))
    columns = [max(map(cell_len, column)) for column in zip(*(rank.texts for rank in ranks), strict=False)]
    while columns and 1 + names + sum(2 + column for column in columns) > width:
        columns.pop()
    room = min(width - 1 - names - sum(2 + column for column in columns) - 2, _LONGEST_BAR)
    lines: list[Line] = []
    for rank in shown:
        line: Line = [(" " + padded(fit_start(rank.name, names), names), "muted")]
        for place, (text, column) in enumerate(zip(rank.texts, columns, strict=False)):
            line.append(("  " + padded(text, column), "text"))
            if place == 0 and room >= _LEAST_BAR:
                share = rank.works if math.isfinite(rank.works) else 0.0
                full = round(min(max(share, 0.0), 1.0) * room)
                line += [("  " + "█" * full, "series"), (" " * (room - full), "muted")]
        lines.append(line)
    if len(shown) < len(ranks):
        lines.append([(fit_start(f" and {counted(len(ranks) - len(shown), 'rank')} more", width), "muted")])
    return lines


class RankLines(Drawn):
    """Widget with the lines of the ranks, hidden for a run of one process."""

    COMPONENT_CLASSES: ClassVar[set[str]] = component_classes("text", "muted", "series")
    _ranks: Sequence[RankNumbers] = ()

    def show(self, ranks: Sequence[RankNumbers], room: int) -> int:
        """Draw `ranks`, and return how many of `room` lines they take."""
        taken = lines_wanted(ranks, room)
        self.display = bool(taken)
        self.styles.height = taken
        if ranks != self._ranks:
            self._ranks = ranks
            self.redraw()
        return taken

    def draw(self, width: int, height: int) -> list[Line]:
        return rank_lines(self._ranks, width, height)
