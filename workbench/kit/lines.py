"""Lines of text with roles, which become colours where colours are available. Loads no Textual."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from workbench.columns import fit

Piece = tuple[str, str]  # text, and its role, such as muted or strong; "" for none
Line = list[Piece]


class WrappedLine(Line):
    """A line that was wrapped: the next line goes on with its text, after the characters in `lost`."""

    lost = ""


MISSING = "×"  # NaN or infinite
TABLE_GAP = 2  # columns between those of a table


def line_of(cells: Iterable[Piece]) -> Line:
    """Join single characters with roles into a line; neighbours of one role become one piece."""
    return [("".join(text for text, _ in group), role) for role, group in groupby(cells, key=lambda cell: cell[1])]


def following(line: Line) -> str:
    """Return what comes between `line` and the next in the text before it was wrapped: a newline, or lost spaces."""
    return line.lost if isinstance(line, WrappedLine) else "\n"


def plain(line: Line) -> str:
    """Return the text of a line."""
    return "".join(text for text, _ in line)


def table_line(first: Line, cells: Iterable[Piece], width: int, *, right: bool = False) -> Line:
    """Return a line of a table: `first`, then each cell cut or padded to `width` columns, after a gap."""
    return [*first, *((" " * TABLE_GAP + fit(text, width, right=right), role) for text, role in cells)]
