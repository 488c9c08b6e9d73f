"""Layout of tokens in lines of a given width: no character is split, and every token is visible."""

from __future__ import annotations

from typing import NamedTuple

from workbench.run.sample_records import TokenSample
from workbench.samples.line_writer import Line, LineWriter, Part, Span

LONGEST_PROMPT = 32_000  # characters of its end that are shown
_NARROWEST = 10  # columns: the longest escape of a character


class Layout(NamedTuple):
    """The lines of a sample: first those of the prompt, then those of the response."""

    lines: list[Line]
    response: int  # the first line of the response
    places: list[tuple[int, int]]  # of each token: line and column where it begins

    def token_at(self, line: int, column: int) -> int | None:
        """Return the token of the cell, None where there is none."""
        spans = self.lines[line] if 0 <= line < len(self.lines) else []
        return next((s.token for s in spans if s.token >= 0 and s.start <= column < s.start + s.width), None)

    def nearest(self, line: int, column: int) -> int | None:
        """Return the token of the line that is nearest to `column`, None if the line has none."""

        def distance(span: Span) -> int:
            return max(span.start - column, column - (span.start + span.width - 1), 0)

        found = min((s for s in self.lines[line] if s.token >= 0 and s.width), key=distance, default=None)
        return None if found is None else found.token

    def cells_of(self, token: int) -> list[tuple[int, Span]]:
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


def lay_out(sample: TokenSample, width: int, *, whitespace: bool = False) -> Layout:
    """Lay out the end of the prompt, a rule, the response, and what ended it.

    Lines have at most `width` columns (10 or more). They break at newlines, before a space and before a wide
    character; a word is broken only if it is longer than a line. whitespace: draw spaces as dots, and mark the newlines
    of the prompt as well.
    """
    writer = LineWriter(max(width, _NARROWEST), whitespace)
    if sample.prompt:
        if (left_out := len(sample.prompt) - LONGEST_PROMPT) > 0:
            writer.write("note", -1, f"… {left_out:,} characters before this")
            writer.end_line()
        writer.write("prompt", -1, sample.prompt[-LONGEST_PROMPT:])
        writer.rule("response")
    response = len(writer.lines)
    part: Part = "text"
    end, offset = response_end(sample), 0
    for token, text in enumerate(sample.texts):
        cut = max(end - offset, 0)  # characters of the token before the stop
        offset += len(text)
        if part == "text" and (cut < len(text) or _is_textless_stop(sample, token)):
            if cut:
                writer.write(part, token, text[:cut])
            writer.write("mark", -1, " ■ ")
            part, text = "stop", text[cut:]
        if text:
            writer.write(part, token, text)
        else:
            writer.hold(token)
    writer.show_held(part)
    if sample.truncated:
        writer.write("mark", -1, f" ✂ cut at {len(sample):,} tokens")
    elif not sample.texts:
        writer.write("mark", -1, "no tokens")
    writer.end_line()
    return Layout(writer.lines, response, writer.places)


def response_end(sample: TokenSample) -> int:
    """Return how many characters of the joined token texts are the response; the rest is the stop token or text."""
    whole = "".join(sample.texts)
    if sample.truncated or whole == sample.completion:
        return len(whole)
    if whole.startswith(sample.completion):
        return len(sample.completion)
    return len(whole) - len(sample.texts[-1]) if sample.texts else 0  # the completion has no special tokens


def _is_textless_stop(sample: TokenSample, token: int) -> bool:
    return not (sample.truncated or sample.texts[token]) and token == len(sample.texts) - 1
