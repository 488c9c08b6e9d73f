"""Scatter plot of several runs in characters, one letter per run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from workbench.compare.lines import Line, Piece, role_of
from workbench.kit.scale import Scale, scale_of, tick_texts, ticks
from workbench.run.metrics import METRICS

SEVERAL = "+"  # runs in one place
_LABELS = 8  # columns of the y axis's numbers
_COLUMNS_A_TICK = 10
_LINES_A_TICK = 3
_AXES = {metric.field: metric._replace(threshold=None) for metric in METRICS}


class Mark(NamedTuple):
    """A point: its place, the letter of its run, and the character to draw."""

    x: float
    y: float
    letter: str
    sign: str


def scatter(marks: Sequence[Mark], width: int, height: int) -> list[Line]:
    """Return score (y) against KL (x) as `height` lines of `width` columns, including axes. marks: at least one.

    A place that several runs share is +; of one run's marks, the later one is shown. Spikes are drawn at the edge.
    """
    across, down = max(width - _LABELS - 2, 1), max(height - 2, 1)
    x_axis = scale_of(((mark.x, mark.x) for mark in marks), _AXES["kl"])
    y_axis = scale_of(((mark.y, mark.y) for mark in marks), _AXES["score_mean"])
    cells: dict[tuple[int, int], Mark] = {}
    for mark in marks:
        place = _row(y_axis.position(mark.y), down), round(x_axis.position(mark.x) * (across - 1))
        other = cells.get(place, mark)
        cells[place] = mark if other.letter == mark.letter else mark._replace(letter="", sign=SEVERAL)
    values = ticks(y_axis, max(down // _LINES_A_TICK, 1))
    labels = {_row(y_axis.position(value), down): text for value, text in zip(values, tick_texts(values), strict=True)}
    return [
        [
            (labels.get(row, "").rjust(_LABELS), "muted"),
            (" ┤" if row in labels else " │", "muted"),
            *(_piece(cells.get((row, column))) for column in range(across)),
        ]
        for row in range(down)
    ] + _x_axis(x_axis, across)


def _piece(mark: Mark | None) -> Piece:
    if mark is None:
        return " ", "text"
    return mark.sign, role_of(mark.letter) if mark.letter else "strong"


def _x_axis(scale: Scale, across: int) -> list[Line]:
    line, labels = ["─"] * across, [" "] * across
    values = ticks(scale, max(across // _COLUMNS_A_TICK, 1))
    free_from = 0
    for value, text in zip(values, tick_texts(values), strict=True):
        column = round(scale.position(value) * (across - 1))
        start = min(max(column - len(text) // 2, 0), across - len(text))
        if start >= free_from:
            line[column] = "┴"
            labels[start : start + len(text)] = text
            free_from = start + len(text) + 2
    indent = " " * _LABELS
    return [[(f"{indent} └{''.join(line)}", "muted")], [(f"{indent}  {''.join(labels)}", "muted")]]


def _row(position: float, down: int) -> int:
    return round((1 - position) * (down - 1))
