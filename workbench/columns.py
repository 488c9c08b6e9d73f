"""Texts cut to the columns of a terminal, and aligned in tables."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from rich.cells import cell_len, set_cell_size


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Pad `text` to exactly `width` columns, or replace its middle by … so that both ends can be read."""
    if cell_len(text) > width:
        head = max(width - 1, 0) // 2
        text = set_cell_size(text, head) + fit_end(text, width - head)
    return padded(text, width, right=right)


def fit_start(text: str, width: int) -> str:
    """Return the beginning of `text` in at most `width` columns; … replaces an end that does not fit."""
    if width < 1:
        return ""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


def fit_end(text: str, width: int) -> str:
    """Return the end of `text` in at most `width` columns; … replaces a beginning that does not fit."""
    if width < 1:
        return ""
    if cell_len(text) <= width:
        return text
    start, left = len(text), width - 1
    while start and (size := cell_len(text[start - 1])) <= left:
        start -= 1
        left -= size
    return "…" + text[start:]


def padded(text: str, width: int, *, right: bool = False) -> str:
    """Return `text` padded to at least `width` columns of the terminal. right: align it to the right."""
    padding = " " * (width - cell_len(text))
    return padding + text if right else text + padding


def aligned(rows: Sequence[Sequence[str]], left: Container[int] = (0,)) -> Iterator[str]:
    """Yield a line for each row: the columns `left` are aligned to the left, the others to the right."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            padded(text, width, right=place not in left)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
