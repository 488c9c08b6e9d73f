"""Layout of tokens in lines of a given width: words stay whole where they fit, characters always.

No character is split, and every token is visible.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Literal, NamedTuple

from rich.cells import cell_len

from trainer.errors import counted
from workbench.run.sample_table import TokenSample
from workbench.text import visible

LONGEST_PROMPT = 32_000  # characters of its end that are shown
NEWLINE = "⏎"
_NARROWEST = 10  # columns: the longest escape of a character
_NOTHING = "∅"  # a token without text that belongs to no character
_CARRIER = "◌"  # Unicode's base for a combining character without one
_LONGEST_CELL = 16  # code points: more of them in one cell cannot be read

_PLAIN = re.compile("[ -~¡-¬®-˿Ͱ-҂]+")  # printable characters of one column each
_FLAG_LETTER = re.compile("[\U0001f1e6-\U0001f1ff]")
_WORDS = re.compile(r" +[^ \n]*\n?|[^ \n]+\n?|\n")

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
        column = span.start
        first, last, step = self.response, len(self.lines) - 1, 1 if by > 0 else -1
        target = max(min(line + by, last), first)
        for at in (*range(target, last + 1 if by > 0 else first - 1, step), *range(target - step, line, -step)):
            spans: TokenLine = [one for one in self.lines[at] if one.token >= 0]
            if at != line and spans:
                nearest = min(spans, key=lambda s: max(s.start - column, column - (s.start + s.width - 1), 0))
                if nearest.token != token:
                    return nearest.token
        return None


def lay_out(sample: TokenSample, width: int, *, whitespace: bool = False) -> TokenLayout:
    """Lay out the end of the prompt, a rule, the response, and what ended it.

    Lines have at most `width` columns (11 or more). They break at newlines, at spaces and before a wide character; a
    word is broken only if it is longer than a line. A single space at a break stays at the end of the line; it belongs
    to no token, unless that is all of its token. whitespace: draw spaces as dots, and mark the newlines of the prompt
    as well.
    """
    writer = _LineWriter(max(width - 1, _NARROWEST), whitespace)  # the last column is for a space at a break
    if sample.prompt:
        if (left_out := len(sample.prompt) - LONGEST_PROMPT) > 0:
            writer.write([_Text("note", -1, f"… {left_out:,} earlier characters")])
        writer.write([_Text("prompt", -1, sample.prompt[-LONGEST_PROMPT:])])
        writer.lines.append([TokenSpan("rule", -1, "── response ".ljust(width, "─"), 0, width)])
    response, texts = len(writer.lines), list[_Text]()
    kind: SpanKind = "text"
    last_text = max((place for place, text in enumerate(sample.texts) if text), default=-1)
    whole, offset = "".join(sample.texts), 0
    end = len(whole)  # of the response; the rest is the stop token or text
    if not sample.truncated and whole.startswith(sample.completion):
        end = len(sample.completion)
    elif not sample.truncated and sample.texts:  # the completion has no special tokens
        end -= len(sample.texts[-1])
    for token, text in enumerate(sample.texts):
        cut = max(end - offset, 0)  # characters of the token before the stop
        offset += len(text)
        is_textless_stop = not (text or sample.truncated) and token == len(sample.texts) - 1
        if kind == "text" and (cut < len(text) or is_textless_stop):
            texts += [_Text(kind, token, text[:cut]), _Text("mark", -1, " ■ ")]
            kind, text = "stop", text[cut:]
        texts.append(_Text(kind, token, text if token <= last_text else _NOTHING))
    if sample.truncated:
        texts.append(_Text("mark", -1, " " + f"✂ cut at {counted(len(sample), 'token')}".replace(" ", "\xa0")))
    elif not sample.texts:
        texts.append(_Text("mark", -1, "no tokens"))
    writer.write(texts)
    return TokenLayout(writer.lines, response, writer.places, frozenset(writer.wrapped))


class _Text(NamedTuple):
    """Text of one token, or of none (-1)."""

    kind: SpanKind
    token: int
    text: str


class _Cell(NamedTuple):
    """What a terminal draws as one character, or part of a plain word, which may be split anywhere.

    last: the last token that is drawn here; the first is `token`.
    """

    kind: SpanKind
    token: int
    last: int
    text: str
    width: int
    plain: bool


class _LineWriter:
    """Writer that fills lines of `width` columns, word by word."""

    def __init__(self, width: int, whitespace: bool) -> None:
        self.lines: list[TokenLine] = []
        self.places: list[tuple[int, int]] = []
        self.wrapped: set[int] = set()
        self._width, self._whitespace = width, whitespace
        self._line: TokenLine = []
        self._column = 0

    def write(self, texts: Sequence[_Text]) -> None:
        """Write a paragraph of texts; words and characters may go on from one to the next."""
        ends = list(accumulate(len(text.text) for text in texts))
        at = start = 0  # the text, and the character of the paragraph
        for match in _WORDS.finditer("".join(text.text for text in texts)):
            word = list[_Cell]()
            for shown, width, length in _characters(match[0]):
                if width == 2 and word and word[-1].text[-1] != " ":  # a line may begin with a wide character
                    self._place(word)
                    word = []
                plain = _PLAIN.fullmatch(shown) is not None and length == width
                while length:  # a plain word has a cell for each of its tokens
                    while ends[at] <= start:
                        at += 1
                    kind, token, _ = texts[at]
                    part = min(length, ends[at] - start) if plain else length
                    start, length = start + part, length - part
                    while ends[at] < start:  # the other tokens of one character
                        at += 1
                    if shown == NEWLINE and token >= 0:
                        kind = "newline"
                    if shown != NEWLINE or token >= 0 or self._whitespace:
                        text = shown[:part] if plain else shown
                        word.append(_Cell(kind, token, texts[at].token, text, part if plain else width, plain))
                    shown = shown[part:] if plain else ""
            self._place(word)
            if match[0][-1] == "\n":
                self._break()
        if self._line:
            self._break()

    def _place(self, word: Sequence[_Cell]) -> None:
        """Put a word into the line, or into the next one where it fits only there: a space before it stays behind."""
        start = "".join(cell.text for cell in word[:2])
        leaves = bool(self._line) and len(start) > 1 and start[0] == " " != start[1]
        if self._column + (width := sum(cell.width for cell in word)) > self._width >= width - leaves:
            if leaves:
                first, *word = word
                own = len(first.text) == 1 and first.token != word[0].token
                self._append(first if own else first._replace(token=-1, last=-1), " ", 1)
                if len(first.text) > 1:
                    word = [first._replace(text=first.text[1:], width=first.width - 1), *word]
            self._break(wraps=True)
        for cell in word:
            text, width = cell.text, cell.width
            while self._column + width > self._width:
                room = self._width - self._column if cell.plain else 0
                self._append(cell, text[:room], room)
                text, width = text[room:], width - room
                self._break(wraps=True)
            self._append(cell, text, width)

    def _append(self, cell: _Cell, text: str, width: int) -> None:
        """Draw `text` at the end of the line; tokens before the cell's that wait for their character begin here too."""
        if not width:
            return
        if self._whitespace and cell.kind not in ("mark", "note"):
            text = text.replace(" ", "·")
        last = self._line[-1] if self._line else None
        if last and (last.token, last.kind) == (cell.token, cell.kind):
            self._line[-1] = last._replace(text=last.text + text, width=last.width + width)
        else:
            self._line.append(TokenSpan(cell.kind, cell.token, text, self._column, width))
        self.places += [(len(self.lines), self._column)] * (cell.last + 1 - len(self.places))
        self._column += width

    def _break(self, *, wraps: bool = False) -> None:
        if wraps:
            if not self._line:
                return
            self.wrapped.add(len(self.lines))
        self.lines.append(self._line)
        self._line, self._column = [], 0


@lru_cache(maxsize=1 << 14)  # holds most words in use
def _characters(word: str) -> tuple[tuple[str, int, int], ...]:
    """Split a word into what a terminal draws as one character: as drawn, its columns, and its length in `word`.

    A word of plain characters is one, which may be split anywhere. Joiners, variation selectors and skin tones are
    nothing, as everywhere.
    """
    if _PLAIN.fullmatch(word):
        return ((word, len(word), len(word)),)
    if word.endswith("\n"):
        return (*(_characters(word[:-1]) if word[:-1] else ()), (NEWLINE, 1, 1))
    found = list[tuple[str, int, int]]()
    for character in word:
        before, _, length = found[-1] if found else ("", 0, 0)
        shown = visible(_CARRIER + character)[1:]
        width = cell_len(shown)
        joins = not width or (_FLAG_LETTER.match(shown) and _FLAG_LETTER.fullmatch(before))
        if joins and before and len(before) < _LONGEST_CELL:
            found[-1] = (before + shown, cell_len(before + shown), length + 1)
        else:
            found.append((shown, width, 1) if width else (_CARRIER + shown, 1, 1))
    return tuple(found)
