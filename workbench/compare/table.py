"""Table with one column per run, split into blocks below each other if it is too wide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len

from workbench.compare.lines import Line, padded
from workbench.kit.cells import fit

_GAP = 2


class Column(NamedTuple):
    """The heading of a column, made safe to print, and the role that it is drawn in."""

    heading: str
    role: str


class Row(NamedTuple):
    """Label and unit of a row, and one cell per column. A row without cells is a heading."""

    label: str
    unit: str = ""
    cells: Sequence[str] = ()


def table(columns: Sequence[Column], rows: Sequence[Row], width: int) -> Iterator[Line]:
    """Yield lines of at most `width` columns, if one column of cells fits; cells are aligned to the right.

    A heading that is wider than its room has … in its middle.
    """
    labels = max(cell_len(row.label) for row in rows)
    units = max(cell_len(row.unit) for row in rows)
    first = labels + (units + 1 if units else 0)
    cells = max([cell_len(cell) for row in rows for cell in row.cells] + [5])
    room = max(width - first, 0)
    blocks = -(-len(columns) // max(room // (cells + _GAP), 1))
    at_once = -(-len(columns) // blocks)
    widest = max(cells, min(max(cell_len(column.heading) for column in columns), room // at_once - _GAP))
    for start in range(0, len(columns), at_once):
        if start:
            yield []
        shown = slice(start, start + at_once)
        yield [
            (" " * first, "text"),
            *((" " * _GAP + fit(heading, widest, right=True), role) for heading, role in columns[shown]),
        ]
        for row in rows:
            if not row.cells:
                yield [(row.label, "muted")]
                continue
            line: Line = [(padded(row.label, labels), "text")]
            if units:
                line.append((f" {padded(row.unit, units)}", "muted"))
            yield [*line, *((" " * _GAP + padded(cell, widest, right=True), "text") for cell in row.cells[shown])]
