"""Lines of text with roles, which become colours where colours are available."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable

from rich.cells import cell_len, chop_cells

from workbench.kit.scale import number_text

Piece = tuple[str, str]  # text, and its role: text, strong, muted, or run-A for what belongs to a run
Line = list[Piece]

_NUMBER = 12  # columns at most


def plain(line: Line) -> str:
    """Return the text of a line, without trailing spaces."""
    return "".join(text for text, _ in line).rstrip()


def rule(title: str, width: int, note: str = "") -> Line:
    """Return a heading over `width` columns, with a note if it fits."""
    told = f"  {note} " if note and len(title) + len(note) + 6 <= width else " "
    return [(title, "strong"), (told, "muted"), ("─" * max(width - len(title) - len(told), 0), "muted")]


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


def number(value: float, digits: int) -> str:
    """Return `value` with `digits` decimals, or in few columns if it is huge; - if it is not finite."""
    return number_text(value, digits, _NUMBER) if math.isfinite(value) else "-"


def mean(values: Iterable[float]) -> float:
    """Return the mean of the finite values; NaN if there is none, infinite if their sum exceeds all floats."""
    there = [value for value in values if math.isfinite(value)]
    return sum(there) / len(there) if there else math.nan


def role_of(letter: str) -> str:
    """Return the role of what belongs to the run with this letter."""
    return f"run-{letter}"


def padded(text: str, width: int, *, right: bool = False) -> str:
    """Return `text` padded to at least `width` columns of the terminal."""
    padding = " " * (width - cell_len(text))
    return padding + text if right else text + padding
