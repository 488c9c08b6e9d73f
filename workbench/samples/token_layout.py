"""Layout of tokens in lines of a given width: words stay whole where they fit, characters always.

No character is split, and every token is visible.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Literal, NamedTuple

from rich.cells import cell_len

from trainer.plurals import counted
from workbench.run.sample_table import TokenSample
from workbench.text import visible

LONGEST_PROMPT = 32_000  # characters of its end that are shown
NEWLINE = "⏎"
_NARROWEST = 10  # columns: the longest escape of a character
_SPACES = " ·"  # as it is, and where spaces are to be seen
_NOTHING = "∅"  # a token without text that belongs to no character
_CARRIER = "◌"  # Unicode's base for a combining character without one
_LONGEST_CELL = 16  # code points: more of them in one cell cannot be read

_RUNS = re.compile(r"(?P<plain>[ -~¡-¬®-˿Ͱ-҂]+)|.", re.DOTALL)  # printable characters of one column each; or one other
_FLAG_LETTER = re.compile("[\U0001f1e6-\U0001f1ff]")
_WORDS = re.compile(r" +[^ ]*|[^ ]+")

SpanKind = Literal["note", "prompt", "rule", "text", "newline", "stop", "mark"]


class TokenSpan(NamedTuple):
    """Neighbouring cells of a line that belong together: those of one token, unless `token` is -1.

    A token that is only part of a character has no span: its place is that of the character.
    """

    kind: SpanKind
    token: int
    text: str  # as drawn
    start: int  # column
    width: int  # columns


TokenLine = list[TokenSpan]


class TokenLayout(NamedTuple):
    """The lines of a sample: first those of the prompt, then those of the response."""

    lines: list[TokenLine]
    response: int  # the first line of the response
    places: list[tuple[int, int]]  # of each token: line and column where it begins
    wrapped: frozenset[int]  # the lines whose text goes on in the next

    def token_at(self, line: int, column: int) -> int | None:
        """Return the token of the cell, None where there is none."""
        spans = self.lines[line] if 0 <= line < len(self.lines) else []
        return next((s.token for s in spans if s.token >= 0 and s.start <= column < s.start + s.width), None)

    def nearest(self, line: int, column: int) -> int | None:
        """Return the token of the line that is nearest to `column`, None if the line has none."""

        def distance(span: TokenSpan) -> int:
            return max(span.start - column, column - (span.start + span.width - 1), 0)

        found = min((s for s in self.lines[line] if s.token >= 0), key=distance, default=None)
        return None if found is None else found.token

    def cells_of(self, token: int) -> list[tuple[int, TokenSpan]]:
        """Return the spans that show `token`, each with its line.

        A token without cells of its own is shown by those of the character that it is a part of.
        """
        if not 0 <= token < len(self.places):
            return []
        first, column = self.places[token]
        last = self.places[token + 1][0] if token + 1 < len(self.places) else len(self.lines) - 1
        own = [(n, s) for n in range(first, last + 1) for s in self.lines[n] if s.token == token]
        holding = (s for s in self.lines[first] if s.start <= column < s.start + s.width)
        return own or [(first, span) for span in holding]

    def lines_away(self, token: int, by: int) -> int | None:
        """Return the token nearest in column `by` lines below (by < 0: above), or on the nearest line that has one.

        Returns None if there is no other token that way.
        """
        if not (cells := self.cells_of(token)):
            return None
        line, span = cells[0 if by < 0 else -1]
        first, last, step = self.response, len(self.lines) - 1, 1 if by > 0 else -1
        target = max(min(line + by, last), first)
        for at in (*range(target, last + 1 if by > 0 else first - 1, step), *range(target - step, line, -step)):
            if at != line and (found := self.nearest(at, span.start)) not in (None, token):
                return found
        return None


def lay_out(sample: TokenSample, width: int, *, whitespace: bool = False) -> TokenLayout:
    """Lay out the end of the prompt, a rule, the response, and what ended it.

    Lines have at most `width` columns (10 or more). They break at newlines, before a space and before a wide
    character; a word is broken only if it is longer than a line. whitespace: draw spaces as dots, and mark the newlines
    of the prompt as well.
    """
    writer = _LineWriter(max(width, _NARROWEST), whitespace)
    if sample.prompt:
        if (left_out := len(sample.prompt) - LONGEST_PROMPT) > 0:
            writer.write("note", -1, f"… {left_out:,} earlier characters")
            writer.end_line()
        writer.write("prompt", -1, sample.prompt[-LONGEST_PROMPT:])
        writer.end_line()
        writer.lines.append([TokenSpan("rule", -1, "── response ".ljust(width, "─"), 0, width)])
    response = len(writer.lines)
    kind: SpanKind = "text"
    end, offset = response_end(sample), 0
    for token, text in enumerate(sample.texts):
        cut = max(end - offset, 0)  # characters of the token before the stop
        offset += len(text)
        is_textless_stop = not (text or sample.truncated) and token == len(sample.texts) - 1
        if kind == "text" and (cut < len(text) or is_textless_stop):
            writer.write(kind, token, text[:cut])
            writer.write("mark", -1, " ■ ")
            kind, text = "stop", text[cut:]
        writer.write(kind, token, text)
    writer.show_textless(kind, len(sample.texts))
    if sample.truncated:
        writer.write("mark", -1, f" ✂ cut at {counted(len(sample), 'token')}")
    elif not sample.texts:
        writer.write("mark", -1, "no tokens")
    writer.end_line()
    return TokenLayout(writer.lines, response, writer.places, frozenset(writer.wrapped))


def response_end(sample: TokenSample) -> int:
    """Return how many characters of the joined token texts are the response; the rest is the stop token or text."""
    whole = "".join(sample.texts)
    if sample.truncated or whole == sample.completion:
        return len(whole)
    if whole.startswith(sample.completion):
        return len(sample.completion)
    return len(whole) - len(sample.texts[-1]) if sample.texts else 0  # the completion has no special tokens


class _Cell:
    """A word or part of one, of plain characters that may be split anywhere, or one other character."""

    __slots__ = ("kind", "last", "plain", "text", "token", "width")

    def __init__(self, kind: SpanKind, token: int, text: str, width: int, *, plain: bool = False) -> None:
        self.kind, self.token, self.text, self.width, self.plain = kind, token, text, width, plain
        self.last = token  # the last token that is drawn here


class _LineWriter:
    """Writer that fills lines of `width` columns; cells wait until their word is whole and can be placed."""

    def __init__(self, width: int, whitespace: bool) -> None:
        self.lines: list[TokenLine] = []
        self.places: list[tuple[int, int]] = []
        self.wrapped: set[int] = set()
        self._width, self._whitespace = width, whitespace
        self._line: TokenLine = []
        self._column = 0
        self._word: list[_Cell] = []

    def write(self, kind: SpanKind, token: int, text: str) -> None:
        """Append `text`."""
        for piece in _pieces(text, self._whitespace and kind not in ("mark", "note")):
            if piece.text == "\n":
                if token >= 0 or self._whitespace:
                    self._word.append(_Cell(kind if token < 0 else "newline", token, NEWLINE, 1))
                self._end_word()
                self._break()
            elif not (piece.joins and self._join(token, piece)):
                if piece.breaks and self._word and self._word[-1].text[-1] not in _SPACES:
                    self._end_word()
                shown = piece.text if piece.width else _CARRIER + piece.text
                self._word.append(_Cell(kind, token, shown, piece.width or cell_len(shown), plain=piece.plain))

    def show_textless(self, kind: SpanKind, tokens: int) -> None:
        """Give those of the `tokens` that still wait for their character cells of their own; no more text comes."""
        self._end_word()
        self._word += (_Cell(kind, token, _NOTHING, 1) for token in range(len(self.places), tokens))

    def end_line(self) -> None:
        """Start a new line, unless this one is empty."""
        self._end_word()
        if self._line:
            self._break()

    def _join(self, token: int, piece: _Piece) -> bool:
        """Draw `piece` with the character before it if a terminal draws both as one; return whether it did."""
        before = self._word[-1] if self._word else None
        if before is None or (before.token < 0) != (token < 0):
            return False
        if piece.width and not (_FLAG_LETTER.fullmatch(before.text) and _FLAG_LETTER.fullmatch(piece.text)):
            return False
        if before.plain and before.width > 1:
            last = _Cell(before.kind, before.token, before.text[-1], 1)
            before.text, before.width = before.text[:-1], before.width - 1
            self._word.append(before := last)
        elif len(before.text) >= _LONGEST_CELL:
            return False
        before.text, before.plain, before.last = before.text + piece.text, False, token
        before.width = cell_len(before.text)
        return True

    def _end_word(self) -> None:
        width = sum(cell.width for cell in self._word)
        if self._column + width > self._width >= width:
            self._wrap()
        for cell in self._word:
            self._put(cell)
        self._word.clear()

    def _put(self, cell: _Cell) -> None:
        text, width = cell.text, cell.width
        while cell.plain and width > (room := self._width - self._column):
            self._append(cell, text[:room], room)
            text, width = text[room:], width - room
            self._wrap()
        if self._column + width > self._width:
            self._wrap()
        self._append(cell, text, width)

    def _append(self, cell: _Cell, text: str, width: int) -> None:
        """Draw `text` at the end of the line; tokens before the cell's that wait for their character begin here too."""
        if not width:
            return
        last = self._line[-1] if self._line else None
        if last and (last.token, last.kind) == (cell.token, cell.kind):
            self._line[-1] = TokenSpan(last.kind, last.token, last.text + text, last.start, last.width + width)
        else:
            self._line.append(TokenSpan(cell.kind, cell.token, text, self._column, width))
        self.places += [(len(self.lines), self._column)] * (cell.last + 1 - len(self.places))
        self._column += width

    def _wrap(self) -> None:
        if self._line:
            self.wrapped.add(len(self.lines))
            self._break()

    def _break(self) -> None:
        self.lines.append(self._line)
        self._line, self._column = [], 0


class _Piece(NamedTuple):
    """Part of a text as drawn: a word of plain characters, or one other character."""

    text: str
    width: int
    plain: bool = False
    breaks: bool = False  # a line may begin here
    joins: bool = False  # may form one character with the one before it


@lru_cache(maxsize=1 << 14)  # holds most words in use
def _pieces(text: str, whitespace: bool) -> tuple[_Piece, ...]:
    pieces = []
    for match in _RUNS.finditer(text):
        if match["plain"]:
            for word in _WORDS.findall(match[0]):
                shown = word.replace(" ", _SPACES[1]) if whitespace else word
                pieces.append(_Piece(shown, len(word), plain=True, breaks=word[0] == " "))
        else:
            pieces.append(_character(match[0]))
    return tuple(pieces)


@lru_cache(maxsize=1 << 14)
def _character(character: str) -> _Piece:
    if character == "\n":
        return _Piece("\n", 1)
    shown = visible(_CARRIER + character)[1:]  # a joiner, variation selector or skin tone is nothing, as everywhere
    width = cell_len(shown)
    joins = width == 0 or unicodedata.category(character) == "So"
    return _Piece(shown, width, breaks=width == 2 and shown == character, joins=joins)
