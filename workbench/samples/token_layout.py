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
_SPACE = "·"
_NOTHING = "∅"  # a token without text that belongs to no character
_CARRIER = "◌"  # Unicode's base for a combining character without one
_LONGEST_CELL = 16  # code points: more of them in one cell cannot be read

_RUNS = re.compile(r"(?P<plain>[ -~¡-¬®-˿Ͱ-҂]+)|.", re.DOTALL)  # printable characters of one column each; or one other
_FLAG_LETTERS = re.compile("[\U0001f1e6-\U0001f1ff]")
_WORDS = re.compile(r" +[^ ]*|[^ ]+")

SpanKind = Literal["note", "prompt", "rule", "text", "newline", "stop", "mark"]


class TokenSpan(NamedTuple):
    """Neighbouring cells of a line that belong together: those of one token, unless `token` is -1.

    A token that is only part of a character has no cell of its own: it has a span of width 0 at that character.
    """

    kind: SpanKind
    token: int
    source: str  # the part of the token's text that is here
    text: str  # as drawn
    start: int  # column
    width: int  # columns


TokenLine = list[TokenSpan]


class _Fragment(NamedTuple):
    """Part of a text: a word of plain characters, which may be split, or one other character."""

    source: str
    text: str
    width: int
    plain: bool = False
    breaks: bool = False  # a line may begin here
    joins: bool = False  # may form one character with the fragment before it


class _PlacedFragment(NamedTuple):
    """A fragment that waits for the end of its word, with its kind and token."""

    kind: SpanKind
    token: int
    fragment: _Fragment
    held: tuple[int, ...] = ()  # tokens without text that belong to it
    joined: bool = False  # drawn with the fragment before it


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

        found = min((s for s in self.lines[line] if s.token >= 0 and s.width), key=distance, default=None)
        return None if found is None else found.token

    def cells_of(self, token: int) -> list[tuple[int, TokenSpan]]:
        """Return the spans that show `token`, each with its line.

        A token without cells of its own is shown by those of the character that it is a part of.
        """
        if not 0 <= token < len(self.places):
            return []
        first, column = self.places[token]
        last = self.places[token + 1][0] if token + 1 < len(self.places) else len(self.lines) - 1
        own = [(n, s) for n in range(first, last + 1) for s in self.lines[n] if s.token == token and s.width]
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
        writer.rule("response")
    response = len(writer.lines)
    kind: SpanKind = "text"
    end, offset = response_end(sample), 0
    for token, text in enumerate(sample.texts):
        cut = max(end - offset, 0)  # characters of the token before the stop
        offset += len(text)
        is_textless_stop = not (text or sample.truncated) and token == len(sample.texts) - 1
        if kind == "text" and (cut < len(text) or is_textless_stop):
            if cut:
                writer.write(kind, token, text[:cut])
            writer.write("mark", -1, " ■ ")
            kind, text = "stop", text[cut:]
        if text:
            writer.write(kind, token, text)
        else:
            writer.hold(token)
    writer.show_held(kind)
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


class _LineWriter:
    """Writer that fills lines of `width` columns; fragments wait until their word is whole and can be placed."""

    def __init__(self, width: int, whitespace: bool) -> None:
        self.lines: list[TokenLine] = []
        self.places: list[tuple[int, int]] = []
        self.wrapped: set[int] = set()
        self._width, self._whitespace = width, whitespace
        self._line: TokenLine = []
        self._column = 0
        self._cell = 0  # column of the last fragment
        self._word: list[_PlacedFragment] = []
        self._word_width = 0
        self._held: list[int] = []

    def write(self, kind: SpanKind, token: int, text: str) -> None:
        """Append `text`."""
        for fragment in _fragments(text, self._whitespace):
            if fragment.source == "\n":
                self._write_newline(kind, token)
            elif not (fragment.joins and self._join(kind, token, fragment)):
                if fragment.width == 0:
                    carried = _CARRIER + fragment.text
                    fragment = _Fragment(fragment.source, carried, cell_len(carried))
                self._add(kind, token, fragment)

    def hold(self, token: int) -> None:
        """Place a token without text where the next text goes."""
        self._held.append(token)

    def show_held(self, kind: SpanKind) -> None:
        """Give tokens that still wait for text a cell of their own; call this when no more text comes."""
        held, self._held = self._held, []
        for token in held:
            self._add(kind, token, _Fragment("", _NOTHING, 1))

    def rule(self, title: str) -> None:
        """Draw a horizontal line with a title."""
        self.end_line()
        text = f"── {title} ".ljust(self._width, "─")
        self.lines.append([TokenSpan("rule", -1, "", text, 0, self._width)])

    def end_line(self) -> None:
        """Start a new line, unless this one is empty."""
        self._end_word()
        if self._line:
            self._break()

    def _write_newline(self, kind: SpanKind, token: int) -> None:
        if token >= 0 or self._whitespace:
            self._add(kind if token < 0 else "newline", token, _Fragment("\n", NEWLINE, 1))
        self._end_word()
        self._break()

    def _add(self, kind: SpanKind, token: int, fragment: _Fragment) -> None:
        if fragment.breaks and self._word and not self._word[-1].fragment.source.endswith(" "):
            self._end_word()
        held: tuple[int, ...] = ()
        if self._held and token >= 0:
            held = tuple(self._held)
            self._held.clear()
        self._word.append(_PlacedFragment(kind, token, fragment, held))
        self._word_width += fragment.width

    def _join(self, kind: SpanKind, token: int, fragment: _Fragment) -> bool:
        """Draw `fragment` with the character before it if both are displayed as one; return whether it did."""
        place = next((n for n in range(len(self._word) - 1, -1, -1) if not self._word[n].joined), -1)
        base = self._word[place] if place >= 0 else None
        if base is None or (base.token < 0) != (token < 0) or not _are_one(base.fragment, fragment):
            return False
        before = base.fragment
        if before.plain and before.width > 1:
            self._word[place] = base._replace(
                fragment=_Fragment(before.source[:-1], before.text[:-1], before.width - 1, True)
            )
            before = _Fragment(before.source[-1], before.text[-1], 1)
            base, place = _PlacedFragment(base.kind, base.token, before), place + 1
            self._word.insert(place, base)
        text = before.text + fragment.text
        self._word_width += cell_len(text) - before.width
        own = base.token == token and place == len(self._word) - 1
        source = before.source + fragment.source if own else before.source
        self._word[place] = base._replace(fragment=_Fragment(source, text, cell_len(text)))
        if not own:
            joined = [(held, "") for held in self._held] + [(token, fragment.source)]
            self._word += (_PlacedFragment(kind, one, _Fragment(source, "", 0), joined=True) for one, source in joined)
            self._held.clear()
        return True

    def _end_word(self) -> None:
        if self._column and self._column + self._word_width > self._width >= self._word_width:
            self._wrap()
        for placed in self._word:
            self._put(placed)
        self._word.clear()
        self._word_width = 0

    def _put(self, placed: _PlacedFragment) -> None:
        kind, token, fragment, held, joined = placed
        if joined:
            self._append(TokenSpan(kind, token, fragment.source, "", self._cell, 0))
            return
        source, text, width, plain, *_ = fragment
        while plain and width > (room := self._width - self._column):
            if room:
                self._put(_PlacedFragment(kind, token, _Fragment(source[:room], text[:room], room), held))
                source, text, width, held = source[room:], text[room:], width - room, ()
            self._wrap()
        if self._column and self._column + width > self._width:
            self._wrap()
        for one in held:
            self._append(TokenSpan(kind, one, "", "", self._column, 0))
        self._cell = self._column
        self._append(TokenSpan(kind, token, source, text, self._column, width))
        self._column += width

    def _append(self, span: TokenSpan) -> None:
        last = self._line[-1] if self._line else None
        alike = last and (last.token, last.kind, last.width > 0) == (span.token, span.kind, span.width > 0)
        if last and alike:
            source, text, width = last.source + span.source, last.text + span.text, last.width + span.width
            self._line[-1] = TokenSpan(last.kind, last.token, source, text, last.start, width)
        else:
            self._line.append(span)
        if span.token == len(self.places):
            self.places.append((len(self.lines), span.start))

    def _wrap(self) -> None:
        self.wrapped.add(len(self.lines))
        self._break()

    def _break(self) -> None:
        self.lines.append(self._line)
        self._line, self._column, self._cell = [], 0, 0


def _are_one(before: _Fragment, fragment: _Fragment) -> bool:
    """Return whether a terminal draws both as one character: combining marks, the letters of a flag."""
    if len(before.text) >= _LONGEST_CELL and not before.plain:
        return False
    flag = _FLAG_LETTERS.fullmatch(before.text) and _FLAG_LETTERS.fullmatch(fragment.text)
    return fragment.width == 0 or flag is not None


@lru_cache(maxsize=1 << 14)  # holds most words in use
def _fragments(text: str, whitespace: bool) -> tuple[_Fragment, ...]:
    """Split `text` into fragments."""
    fragments = []
    for match in _RUNS.finditer(text):
        run = match[0]
        if match["plain"]:
            for word in _WORDS.findall(run):
                shown = word.replace(" ", _SPACE) if whitespace else word
                fragments.append(_Fragment(word, shown, len(word), plain=True, breaks=word[0] == " "))
        else:
            fragments.append(_fragment(run))
    return tuple(fragments)


@lru_cache(maxsize=1 << 14)
def _fragment(character: str) -> _Fragment:
    shown = visible(_CARRIER + character)[1:]  # a joiner, variation selector or skin tone is nothing, as everywhere
    width = cell_len(shown)
    joins = width == 0 or unicodedata.category(character) == "So"
    return _Fragment(character, shown, width, breaks=width == 2 and shown == character, joins=joins)
