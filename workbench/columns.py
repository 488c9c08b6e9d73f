"""Texts cut to the columns of a terminal, and aligned in tables."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from rich.cells import cell_len, set_cell_size

T = TypeVar("T")

_SPELLING_JOINER = re.compile("\u200d(?=[\u0590-\u1fff])")  # Rich takes what follows for a part of an emoji


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


def fit_name(text: str, width: int) -> str:
    """Pad the name of a run to exactly `width` columns, or cut its beginning: those of a sweep differ at their ends."""
    return padded(fit_end(text, width), width)


def padded(text: str, width: int, *, right: bool = False) -> str:
    """Return `text` padded to at least `width` columns of the terminal. right: align it to the right."""
    padding = " " * (width - cell_len(text))
    return padding + text if right else text + padding


def packed(pieces: Iterable[T], width: int, gap: int, length: Callable[[Any], int] = cell_len) -> list[list[T]]:
    """Split `pieces` into as few lines of `width` columns as possible, with `gap` columns between two pieces.

    The first line holds as many of the first pieces as fit. A piece that is longer than a line has one to itself.
    """
    lines: list[list[T]] = [[]]
    used = -gap
    for piece in pieces:
        columns = gap + length(piece)
        if lines[-1] and used + columns > width:
            lines.append([])
            used = -gap
        lines[-1].append(piece)
        used += columns
    return lines


def aligned(rows: Sequence[Sequence[str]], left: Container[int] = (0,)) -> Iterator[str]:
    """Yield a line for each row: the columns `left` are aligned to the left, the others to the right."""
    widths = [max(map(_plain_width, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            padded(text, width - _plain_width(text) + cell_len(text), right=place not in left)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def _plain_width(text: str) -> int:
    """Return the columns that a terminal gives to `text`, in which Rich counts no spacing marks of Indic scripts."""
    if text.isascii():
        return len(text)
    text = _SPELLING_JOINER.sub("", text)
    return cell_len(text) + sum(unicodedata.category(character) == "Mc" for character in text)
