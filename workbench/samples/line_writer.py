"""Text wrapped into lines: words stay whole where they fit, characters always."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Literal, NamedTuple

from rich.cells import cell_len

from workbench.text import visible

NEWLINE = "⏎"
_SPACE = "·"
_NOTHING = "∅"  # a token without text that belongs to no character
_CARRIER = "◌"  # Unicode's base for a combining character without one
_JOINER = "\u200d"
_LONGEST_CELL = 16  # code points: more of them in one cell cannot be read

_RUNS = re.compile(r"(?P<plain>[ -~¡-¬®-˿Ͱ-҂]+)|.", re.DOTALL)  # printable characters of one column each; or one other
_FLAG_LETTERS = re.compile("[\U0001f1e6-\U0001f1ff]")
_WORDS = re.compile(r" +[^ ]*|[^ ]+")

Part = Literal["note", "prompt", "rule", "text", "newline", "stop", "mark"]


class Span(NamedTuple):
    """Neighbouring cells of a line that belong together: those of one token, unless `token` is -1.

    A token that is only part of a character has no cell of its own: it has a span of width 0 at that character.
    """

    part: Part
    token: int
    source: str  # the part of the token's text that is here
    text: str  # as drawn
    start: int  # column
    width: int  # columns


Line = list[Span]


class _Piece(NamedTuple):
    """Part of a text: a word of plain characters, which may be split, or one other character."""

    source: str
    text: str
    width: int
    plain: bool = False
    breaks: bool = False  # a line may begin here
    joins: bool = False  # may form one character with the piece before it


class _Placed(NamedTuple):
    """A piece that waits for the end of its word, with its part and token."""

    part: Part
    token: int
    piece: _Piece
    held: tuple[int, ...] = ()  # tokens without text that belong to it
    joined: bool = False  # drawn with the piece before it


class LineWriter:
    """Writer that fills lines of `width` columns; pieces wait until their word is whole and can be placed."""

    def __init__(self, width: int, whitespace: bool) -> None:
        self.lines: list[Line] = []
        self.places: list[tuple[int, int]] = []
        self._width, self._whitespace = width, whitespace
        self._line: Line = []
        self._column = 0
        self._cell = 0  # column of the last piece
        self._word: list[_Placed] = []
        self._word_width = 0
        self._held: list[int] = []

    def write(self, part: Part, token: int, text: str) -> None:
        """Append `text`."""
        for piece in _pieces(text, self._whitespace):
            if piece.source == "\n":
                self._write_newline(part, token)
            elif not (piece.joins and self._join(part, token, piece)):
                if piece.width == 0:
                    carried = _CARRIER + piece.text
                    piece = _Piece(piece.source, carried, cell_len(carried))
                self._add(part, token, piece)

    def hold(self, token: int) -> None:
        """Place a token without text where the next text goes."""
        self._held.append(token)

    def show_held(self, part: Part) -> None:
        """Give tokens that still wait for text a cell of their own; call this when no more text comes."""
        held, self._held = self._held, []
        for token in held:
            self._add(part, token, _Piece("", _NOTHING, 1))

    def rule(self, title: str) -> None:
        """Draw a horizontal line with a title."""
        self.end_line()
        text = f"── {title} ".ljust(self._width, "─")
        self.lines.append([Span("rule", -1, "", text, 0, self._width)])

    def end_line(self) -> None:
        """Start a new line, unless this one is empty."""
        self._end_word()
        if self._line:
            self._break()

    def _write_newline(self, part: Part, token: int) -> None:
        if token >= 0 or self._whitespace:
            self._add(part if token < 0 else "newline", token, _Piece("\n", NEWLINE, 1))
        self._end_word()
        self._break()

    def _add(self, part: Part, token: int, piece: _Piece) -> None:
        if piece.breaks and self._word and not self._word[-1].piece.source.endswith(" "):
            self._end_word()
        held: tuple[int, ...] = ()
        if self._held and token >= 0:
            held = tuple(self._held)
            self._held.clear()
        self._word.append(_Placed(part, token, piece, held))
        self._word_width += piece.width

    def _join(self, part: Part, token: int, piece: _Piece) -> bool:
        """Draw `piece` with the character before it if both are displayed as one; return whether it did."""
        place = next((n for n in range(len(self._word) - 1, -1, -1) if not self._word[n].joined), -1)
        base = self._word[place] if place >= 0 else None
        if base is None or (base.token < 0) != (token < 0) or not _are_one(base.piece, piece):
            return False
        before = base.piece
        if before.plain and before.width > 1:
            self._word[place] = base._replace(
                piece=_Piece(before.source[:-1], before.text[:-1], before.width - 1, True)
            )
            before = _Piece(before.source[-1], before.text[-1], 1)
            base, place = _Placed(base.part, base.token, before), place + 1
            self._word.insert(place, base)
        text = before.text + piece.text
        self._word_width += cell_len(text) - before.width
        own = base.token == token and place == len(self._word) - 1
        source = before.source + piece.source if own else before.source
        self._word[place] = base._replace(piece=_Piece(source, text, cell_len(text)))
        if not own:
            joined = [(held, "") for held in self._held] + [(token, piece.source)]
            self._word += (_Placed(part, one, _Piece(source, "", 0), joined=True) for one, source in joined)
            self._held.clear()
        return True

    def _end_word(self) -> None:
        if self._column and self._column + self._word_width > self._width >= self._word_width:
            self._break()
        for placed in self._word:
            self._put(placed)
        self._word.clear()
        self._word_width = 0

    def _put(self, placed: _Placed) -> None:
        part, token, piece, held, joined = placed
        if joined:
            self._append(Span(part, token, piece.source, "", self._cell, 0))
            return
        source, text, width, plain, *_ = piece
        while plain and width > (room := self._width - self._column):
            if room:
                self._put(_Placed(part, token, _Piece(source[:room], text[:room], room), held))
                source, text, width, held = source[room:], text[room:], width - room, ()
            self._break()
        if self._column and self._column + width > self._width:
            self._break()
        for one in held:
            self._append(Span(part, one, "", "", self._column, 0))
        self._cell = self._column
        self._append(Span(part, token, source, text, self._column, width))
        self._column += width

    def _append(self, span: Span) -> None:
        last = self._line[-1] if self._line else None
        alike = last and (last.token, last.part, last.width > 0) == (span.token, span.part, span.width > 0)
        if last and alike and not last.text.endswith(_JOINER):  # joined, both may take fewer columns
            source, text, width = last.source + span.source, last.text + span.text, last.width + span.width
            self._line[-1] = Span(last.part, last.token, source, text, last.start, width)
        else:
            self._line.append(span)
        if span.token == len(self.places):
            self.places.append((len(self.lines), span.start))

    def _break(self) -> None:
        self.lines.append(self._line)
        self._line, self._column, self._cell = [], 0, 0


def _are_one(before: _Piece, piece: _Piece) -> bool:
    """Return whether a terminal draws both as one character: combining marks, joined emoji, the letters of a flag."""
    if len(before.text) >= _LONGEST_CELL and not before.plain:
        return False
    flag = _FLAG_LETTERS.fullmatch(before.text) and _FLAG_LETTERS.fullmatch(piece.text)
    return piece.width == 0 or before.text.endswith(_JOINER) or flag is not None


@lru_cache(maxsize=1 << 14)  # holds most words in use
def _pieces(text: str, whitespace: bool) -> tuple[_Piece, ...]:
    """Split `text` into pieces."""
    pieces = []
    for match in _RUNS.finditer(text):
        run = match[0]
        if match["plain"]:
            for word in _WORDS.findall(run):
                shown = word.replace(" ", _SPACE) if whitespace else word
                pieces.append(_Piece(word, shown, len(word), plain=True, breaks=word[0] == " "))
        else:
            pieces.append(_piece(run))
    return tuple(pieces)


@lru_cache(maxsize=1 << 14)
def _piece(character: str) -> _Piece:
    shown = visible(character)
    width = cell_len(shown)
    joins = width == 0 or unicodedata.category(character) == "So"
    return _Piece(character, shown, width, breaks=width == 2 and shown == character, joins=joins)
