"""Lines and tables of a comparison. Their roles: text, strong, muted, and run-A for what belongs to a run."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.cells import cell_len, chop_cells

from workbench.text import TABLE_GAP, Line, Piece, padded, table_line

NUMBER = 12  # columns of a number, at most


def heading(title: str, width: int, note: str = "") -> Line:
    """Return a heading over `width` columns, with a note if it fits."""
    shown = f"  {note} " if note and len(title) + len(note) + 6 <= width else " "
    return [(title, "strong"), (shown, "muted"), ("─" * max(width - len(title) - len(shown), 0), "muted")]


def notes(text: str, width: int) -> list[Line]:
    """Return `text` as muted lines of at most `width` columns."""
    return [[(line, "muted")] for line in wrapped(text, width)]


def wrapped(text: str, width: int, most: int = 0) -> list[str]:
    """Return `text` in lines of at most `width` columns; if there are more than `most`, the last one is ….

    text: already made safe to print. most: 0 for no limit.
    """
    lines = [
        piece for line in textwrap.wrap(text, width, break_on_hyphens=False) for piece in chop_cells(line, width)
    ] or [""]
    return [*lines[: most - 1], "…"] if 0 < most < len(lines) else lines


Row = tuple[str, str, Sequence[str]]
"""Label and unit of a row, and one cell per column. A row without cells is a heading."""


def table_lines(columns: Sequence[Piece], rows: Sequence[Row], width: int) -> Iterator[Line]:
    """Yield lines of at most `width` columns (60 or more); cells are aligned to the right.

    columns: their headings, made safe to print. A heading that is wider than its room has … in its middle.
    """
    labels = max(cell_len(label) for label, _, _ in rows)
    units = max(cell_len(unit) for _, unit, _ in rows)
    first = labels + (units + 1 if units else 0)
    room = max(width - first, 0)
    cells = min(max([cell_len(cell) for *_, cells in rows for cell in cells] + [5]), max(room - TABLE_GAP, 5))
    blocks = -(-len(columns) // max(room // (cells + TABLE_GAP), 1))
    at_once = -(-len(columns) // blocks)
    widest = max(cells, min(max(cell_len(heading) for heading, _ in columns), room // at_once - TABLE_GAP))
    for start in range(0, len(columns), at_once):
        if start:
            yield []
        shown = slice(start, start + at_once)
        yield table_line([(" " * first, "text")], columns[shown], widest, right=True)
        for label, unit, of_row in rows:
            line: Line = [(padded(label, labels), "text"), *([(f" {padded(unit, units)}", "muted")] if units else [])]
            pieces = ((cell, "text") for cell in of_row[shown])
            yield table_line(line, pieces, widest, right=True) if of_row else [(label, "muted")]
