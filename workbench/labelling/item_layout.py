"""Layout of an item in lines: the prompt, and below it the completions, side by side or one below the other.

Both sides have the same width and the same marks, so that only their texts differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len

from workbench.columns import fit
from workbench.kit.drawing import Line, Piece, plain, wrapped
from workbench.kit.word_diff import Part, word_diff
from workbench.labelling.item_texts import ItemTexts, Turn
from workbench.text import visible

if TYPE_CHECKING:
    from markdown_it.token import Token
    from rich.style import Style as RichStyle

SIDE_BY_SIDE = 98  # columns of the pane in a terminal with 100 columns
LONGEST = 100_000  # characters of a text that are shown
_LONGEST_MARKDOWN = 20_000  # characters: a longer text takes too long to lay out
_NARROWEST = 12

# These would change the text: decoded entities may be control characters, and definitions disappear.
_LEFT_ALONE = ["entity", "image", "reference", "html_block", "html_inline"]


class Style(NamedTuple):
    """Style of the texts. diff: mark the words that two completions do not share, instead of Markdown."""

    markdown: bool = False
    diff: bool = False


class Layout(NamedTuple):
    """Lines of an item; indexes of the completions' headings; the rule on the last screen line if more is below."""

    lines: list[Line]
    headings: list[int]
    end: Line


def lay_out(texts: ItemTexts, width: int, height: int, style: Style) -> Layout:
    """Lay out an item in lines of at most `width` columns (at least 12).

    A rule between two sides continues down to `height`.
    """
    width = max(width, _NARROWEST)
    count = len(texts.completions)
    columns = 2 if count == 2 and width >= SIDE_BY_SIDE else 1
    side = (width + 1) // columns - 1
    whole = columns * (side + 1) - 1
    marked = differing(*texts.completions) if style.diff and count == 2 else (None,) * count
    blocks = [
        text_lines(turns, side - 2, style, pieces) for turns, pieces in zip(texts.completions, marked, strict=True)
    ]
    lines = [_rule(["prompt"], whole)]
    lines += _rows([text_lines(texts.prompt, whole - 2, style._replace(diff=False))], whole)
    headings = []
    for first in range(0, count, columns):
        headings.append(len(lines))
        lines.append(_rule([str(number + 1) for number in range(first, first + columns)], side, joint="┬"))
        lines += _rows(blocks[first : first + columns], side)
    lines += _rows([[[]] * (height - len(lines))] * columns, side)
    return Layout(lines, headings, _rule([""] * columns, side, joint="┴"))


def text_lines(
    turns: Sequence[Turn], width: int, style: Style, marked: Sequence[Sequence[Piece]] | None = None
) -> list[Line]:
    """Wrap messages, or a text, to lines of at most `width` columns. marked: the text of each in pieces with roles."""
    lines: list[Line] = []
    for place, (role, text) in enumerate(turns):
        if place:
            lines.append([])
        if role:
            name = visible(role)
            lines.append([(fit(name, min(cell_len(name), width)), "role")])
        if not text.strip():
            lines += wrapped([("only white space" if text else "empty", "muted")], width)
            continue
        if marked is not None:
            lines += wrapped(marked[place], width)
        else:
            lines += _text(text[:LONGEST], width, markdown=style.markdown)
        if len(text) > LONGEST:
            lines += wrapped([(f"✂ {len(text) - LONGEST:,} more characters not shown", "muted")], width)
    return lines


def markdown_lines(text: str, width: int) -> list[Line] | None:
    """Lay out `text` as Markdown in lines of at most `width` columns; only the marks are hidden, nothing is fetched.

    The roles are text, strong, emphasis, struck and code. Returns None if letters or digits would be hidden, as in a
    table that is too wide or a text that is nested too deep.
    """
    from markdown_it import MarkdownIt
    from rich.console import Console
    from rich.markdown import Markdown

    source = visible(text, keep_newlines=True)
    markdown = Markdown("", hyperlinks=False)
    parser = MarkdownIt("commonmark").enable(["strikethrough", "table"]).disable(_LEFT_ALONE)
    markdown.parsed = parser.parse(source)
    console = Console(width=max(width, 2), color_system=None, legacy_windows=False)
    options = console.options.update(width=max(width, 2), height=None)
    rendered = console.render_lines(markdown, options, pad=False)
    lines = [[(segment.text, _role(segment.style)) for segment in line if segment.text] for line in rendered]
    seen = Counter(character for line in lines for piece, _ in line for character in piece)
    seen.update(_languages(markdown.parsed))
    there = Counter(filter(str.isalnum, source))
    return lines if there <= seen else None


def differing(left: Sequence[Turn], right: Sequence[Turn]) -> tuple[list[list[Piece]], list[list[Piece]]]:
    """Split the messages of both sides into pieces: "differs" is missing on the other side, "text" is the rest."""
    nothing = Turn("", "")
    sides: tuple[list[list[Piece]], list[list[Piece]]] = ([], [])
    for one, other in zip_longest(left, right, fillvalue=nothing):
        parts = word_diff(one.text[:LONGEST], other.text[:LONGEST]).parts
        for side, kind in zip(sides, ("gone", "new"), strict=True):
            side.append([_piece(part) for part in parts if part.kind in ("same", kind)])
    return sides[0][: len(left)], sides[1][: len(right)]


def with_note(rule: Line, note: str) -> Line:
    """Return the rule with a note at its right end, if there is room."""
    *others, (line, role) = rule
    room = len(line) - len(note) - 4
    return [*others, ("─" * room, role), (f" {note} ", "muted"), ("──", role)] if room > 0 else rule


def _text(text: str, width: int, *, markdown: bool) -> list[Line]:
    drawn = markdown_lines(text, width) if markdown and len(text) <= _LONGEST_MARKDOWN else None
    return wrapped([(text, "text")], width) if drawn is None else drawn


def _piece(part: Part) -> Piece:
    """Return a part as a piece; a difference in white space only is drawn with symbols."""
    if part.kind == "same":
        return part.text, "text"
    if part.text.strip():
        return part.text, "differs"
    return part.text.replace(" ", "␣").replace("\n", "␊\n"), "differs"


def _rule(titles: Sequence[str], width: int, joint: str = "") -> Line:
    """Return a rule with a title for each side. width: columns of each side."""
    line: Line = []
    for place, title in enumerate(titles):
        title = f" {title} " if title else ""
        line += [(joint, "rule")] if place else []
        line += [("──", "rule"), (title, "heading"), ("─" * (width - 2 - len(title)), "rule")]
    return line


def _rows(blocks: Sequence[Sequence[Line]], width: int) -> list[Line]:
    """Join blocks side by side, each `width` columns wide, with a rule between them."""
    lines: list[Line] = []
    for row in zip_longest(*blocks, fillvalue=[]):
        line: Line = []
        for place, cells in enumerate(row):
            line += [("│", "rule")] if place else []
            line += [(" ", "text"), *cells, (" " * (width - 1 - cell_len(plain(cells))), "text")]
        lines.append(line)
    return lines


def _languages(tokens: list[Token]) -> str:
    """Return the languages of code blocks, which are not drawn."""
    return "".join(token.info for token in tokens if token.type == "fence" and len(token.info.split()) == 1)


def _role(style: RichStyle | None) -> str:
    if style is None:
        return "text"
    if style.bgcolor is not None:
        return "code"
    return "strong" if style.bold else "struck" if style.strike else "emphasis" if style.italic else "text"
