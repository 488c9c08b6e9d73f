"""Text for a terminal: safe to print, cut to columns, in lines with roles, which become colours; numbers as text.

It loads no Textual. A terminal must show every character of a model's text and obey none.
"""

from __future__ import annotations

import math
import re
import textwrap
import unicodedata
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby, zip_longest
from typing import Any, TypeVar

from rich.cells import cell_len, chop_cells, set_cell_size

_PICTURES = 0x2400  # U+2400 to U+241F picture the control characters U+0000 to U+001F
_UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # controls, format (bidi among them), surrogates, line separators
_NON_JOINER = "\u200c"  # keeps letters of Persian and Indic scripts apart; no column in any terminal
_MODIFIERS = "\u200c\u200d\ufe0e\ufe0f\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"  # of the character before
_FILLERS = "\u3164\uffa0"  # letters without a look, of a width on which terminals differ
_OF_ITS_OWN_WIDTH = re.compile(f"[{_MODIFIERS}{_FILLERS}]")
_FIRST_JOINED = "\u0590"  # from here on there are scripts and emoji that are spelt with joiners


def visible(text: str, *, keep_newlines: bool = False, joined: bool = False) -> str:
    """Return `text` on one line, with every character that a terminal would obey shown as a symbol.

    Escape becomes ␛, newline ␊, delete ␡; C1 controls, bidi marks, zero-width characters and lone surrogates
    become their escape, as in \\x9b and \\u202e. The result can always be encoded as UTF-8.
    Emoji are shown without variation selectors, skin tones and joiners: terminals do not agree how wide they are with
    them, and the borders of panes would move. joined: keep these, in plain output and where text is edited or copied.
    keep_newlines: leave newlines as they are, for places that show several lines.
    """
    if text.isprintable() and not _OF_ITS_OWN_WIDTH.search(text):  # the usual case, in C
        return text
    return "".join(
        c if c == "\n" and keep_newlines else _visible_character(c, before, joined)
        for before, c in zip(f" {text}", text, strict=False)
    )


def typed(text: str) -> str:
    """Return `text` for an input field: newlines and tabs stay, other control characters are shown as symbols."""
    return "\t".join(visible(part, keep_newlines=True, joined=True) for part in text.split("\t"))


def as_sent(text: str, prompt: str) -> str:
    """Restore the control characters of `prompt` from their symbols in `text`, which was typed over it."""
    for character in set(prompt):
        if (shown := typed(character)) != character and shown not in prompt:
            text = text.replace(shown, character)
    return text


def has_words(text: str, query: str) -> bool:
    """Return whether `text` contains every word of `query`, ignoring case."""
    text = text.casefold()
    return all(word in text for word in query.casefold().split())


def _visible_character(character: str, before: str, joined: bool) -> str:
    code = ord(character)
    is_modifier = character in _MODIFIERS
    if is_modifier and (before >= _FIRST_JOINED or (unicodedata.category(character) == "Mn" and before != " ")):
        return character if joined or character == _NON_JOINER else ""
    if code < 0x20:
        return chr(_PICTURES + code)
    if code == 0x7F:
        return "␡"
    if is_modifier or character in _FILLERS or unicodedata.category(character) in _UNSAFE:
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return character


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


def following(line: Sequence[Piece]) -> str:
    """Return what comes between `line` and the next in the text before it was wrapped: a newline, or lost spaces."""
    return line.lost if isinstance(line, WrappedLine) else "\n"


def plain(line: Sequence[Piece]) -> str:
    """Return the text of a line."""
    return "".join(text for text, _ in line)


def beside(blocks: Iterable[Sequence[Line]], width: int, joint: Piece) -> Iterator[Line]:
    """Yield the lines of blocks side by side, each padded to `width` columns, with `joint` between two."""
    for row in zip_longest(*blocks, fillvalue=Line()):
        line: Line = []
        for place, cells in enumerate(row):
            line += [joint] if place else []
            line += [*cells, (" " * (width - cell_len(plain(cells))), "text")]
        yield line


def table_line(first: Line, cells: Iterable[Piece], width: int, *, right: bool = False) -> Line:
    """Return a line of a table: `first`, then each cell cut or padded to `width` columns, after a gap."""
    return [*first, *((" " * TABLE_GAP + fit(text, width, right=right), role) for text, role in cells)]


def notes(text: str, width: int) -> list[Line]:
    """Return `text` as muted lines of at most `width` columns."""
    return [[(line, "muted")] for line in text_lines(text, width)]


def text_lines(text: str, width: int, most: int = 0) -> list[str]:
    """Return `text` in lines of at most `width` columns; if there are more than `most`, the last one is ….

    text: already made safe to print. most: 0 for no limit.
    """
    wrapped = textwrap.wrap(text, width, break_on_hyphens=False)
    lines = [piece for line in wrapped for piece in chop_cells(line, width)] or [""]
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


def number(value: float | None, digits: int = 3, *, signed: bool = False, width: int = 0) -> str:
    """Format `value` with `digits` decimals; - where it is unknown (None, NaN or infinite).

    signed: with a + before a positive number.
    width: columns to stay within, 7 or more, with fewer decimals or scientific notation if need be; 0 for any.
    """
    if value is None or not math.isfinite(value):
        return "-"
    sign = "+" if signed else ""
    forms = [f".{places}f" for places in range(digits, -1, -1)] + [".3e", ".2e", ".1e", ".0e"]
    texts = (f"{value:{sign}{form}}" for form in forms)
    return next((text for text in texts if not width or len(text) <= width), f"{value:{sign}.0e}")


def score_text(score: float, digits: int = 2) -> str:
    """Format a response's score with its sign after the word; `not scored` if there is none."""
    return "not scored" if math.isnan(score) else f"score {number(score, digits, signed=True)}"


def percent(share: float | None, digits: int = 0) -> str:
    """Format a share of 1 as a percentage with `digits` decimals; - where it is unknown."""
    text = number(None if share is None else 100 * share, digits)
    return text if text == "-" else f"{text}%"


def rate(per_second: float) -> str:
    """Format a rate, with a decimal below 100."""
    return f"{per_second:.{int(per_second < 100)}f}"


def duration(seconds: float) -> str:
    """Format `seconds` for a reader: 4.2s, 42s, 6m 20s, 3h 05m; - when unknown (NaN or infinite)."""
    if not math.isfinite(seconds):
        return "-"
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02}m"


def moment(seconds: float | None) -> str:
    """Format a time, in unix seconds, as local date and time; - when unknown."""
    return "-" if seconds is None else f"{datetime.fromtimestamp(seconds).astimezone():%F %R}"


def gigabytes(count: int) -> str:
    """Format `count` bytes in GB (10^9 bytes)."""
    return f"{count / 1e9:.1f} GB"
