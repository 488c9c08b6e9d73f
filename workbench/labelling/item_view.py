"""Item to judge as it is drawn: the prompt, and below it the completions, side by side or one below the other.

Both sides have the same width and the same marks, so that only their texts differ.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len
from textual.binding import BindingType

from trainer.errors import counted
from workbench.kit.drawing import ScrolledLines, scroll_bindings, wrapped
from workbench.kit.word_diff import word_diff
from workbench.labelling.texts import ItemTexts, Turn
from workbench.text import Line, Piece, beside, fit, visible

if TYPE_CHECKING:
    from rich.style import Style

SIDE_BY_SIDE = 98  # columns of the pane in a terminal with 100 columns
LONGEST = 100_000  # characters of a text that are shown
_LONGEST_MARKDOWN = 20_000  # characters: a longer text takes too long to lay out
_NARROWEST = 12
_ROLES = ("rule", "heading", "role", "text", "differs", "strong", "emphasis", "struck", "code", "muted")
_RULES = 2  # lines of a screenful that show the position

# These would change the text: decoded entities may be control characters, and definitions disappear.
_LEFT_ALONE = ["entity", "image", "reference", "html_block", "html_inline"]


def lay_out(
    texts: ItemTexts, width: int, *, markdown: bool = False, diff: bool = False
) -> tuple[list[Line], list[int], Line]:
    """Lay out an item in lines of at most `width` columns (at least 12).

    Returns the lines, the indexes of the completions' headings, and a rule for the end of the texts. markdown: draw the
    texts as Markdown. diff: mark the words that two completions do not share, instead.
    """
    width = max(width, _NARROWEST)
    count = len(texts.completions)
    columns = 2 if count == 2 and width >= SIDE_BY_SIDE else 1
    side = (width + 1) // columns - 1
    whole = columns * (side + 1) - 1
    marked = differing(*texts.completions) if diff and count == 2 else (None,) * count
    blocks = [
        text_lines(turns, side - 2, markdown, of_one) for turns, of_one in zip(texts.completions, marked, strict=True)
    ]
    bar = "│", "rule"
    lines = [_rule(["prompt"], whole), *beside([text_lines(texts.prompt, whole - 2, markdown)], whole, bar)]
    headings = []
    for first in range(0, count, columns):
        headings.append(len(lines))
        lines.append(_rule([str(number + 1) for number in range(first, first + columns)], side, joint="┬"))
        lines += beside(blocks[first : first + columns], side, bar)
    return lines, headings, _rule([""] * columns, side, joint="┴")


def text_lines(
    turns: Sequence[Turn], width: int, markdown: bool, marked: Sequence[Sequence[Piece]] | None = None
) -> list[Line]:
    """Wrap messages, or a text, to lines of at most `width` columns after a space.

    marked: the text of each in pieces with roles.
    """
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
        as_markdown = marked is None and markdown and len(text) <= _LONGEST_MARKDOWN
        lines += (markdown_lines(text, width) if as_markdown else None) or wrapped(
            [(text[:LONGEST], "text")] if marked is None else marked[place], width
        )
        if len(text) > LONGEST:
            lines += wrapped([(f"✂ {counted(len(text) - LONGEST, 'more character')} not shown", "muted")], width)
    return [[(" ", "text"), *line] for line in lines]


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
    for token in markdown.parsed:
        if token.type == "fence" and len(token.info.split()) == 1:
            seen.update(token.info)  # the language of a code block, which is not drawn
    there = Counter(filter(str.isalnum, source))
    return lines if there <= seen else None


def differing(left: Sequence[Turn], right: Sequence[Turn]) -> tuple[list[list[Piece]], list[list[Piece]]]:
    """Split the messages of both sides into pieces: "differs" is missing on the other side, "text" is the rest."""
    sides: tuple[list[list[Piece]], list[list[Piece]]] = ([], [])
    for one, other in zip_longest(left, right, fillvalue=Turn("", "")):
        pieces: tuple[list[Piece], list[Piece]] = ([], [])
        for kind, text in word_diff(one.text[:LONGEST], other.text[:LONGEST]):
            if kind == "same":
                pieces[0].append((text, "text"))
                pieces[1].append((text, "text"))
            else:  # a difference in white space only is drawn with symbols
                shown = text if text.strip() else text.replace(" ", "␣").replace("\n", "␊\n")
                pieces[kind == "new"].append((shown, "differs"))
        sides[0].append(pieces[0])
        sides[1].append(pieces[1])
    return sides[0][: len(left)], sides[1][: len(right)]


def _with_note(rule: Sequence[Piece], note: str) -> Line:
    """Return the rule with a note at its right end, if there is room."""
    *others, (line, role) = rule
    room = len(line) - len(note) - 4
    return [*others, ("─" * room, role), (f" {note} ", "muted"), ("──", role)] if room > 0 else [*rule]


def _rule(titles: Sequence[str], width: int, joint: str = "") -> Line:
    """Return a rule with a title for each side. width: columns of each side."""
    line: Line = []
    for place, title in enumerate(titles):
        title = f" {title} " if title else ""
        line += [(joint, "rule")] if place else []
        line += [("──", "rule"), (title, "heading"), ("─" * (width - 2 - len(title)), "rule")]
    return line


def _role(style: Style | None) -> str:
    if style is None:
        return "text"
    if style.bgcolor is not None:
        return "code"
    return "strong" if style.bold else "struck" if style.strike else "emphasis" if style.italic else "text"


class LabelView(ScrolledLines):
    """View of a prompt and its completions, or of a message if there are none.

    If they are longer than the screen, the first line shows which text this is and how much is above, and the last line
    how much is below.
    """

    CSS_NAME = "label-view"
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"label-view--{role}" for role in _ROLES}
    BINDINGS: ClassVar[list[BindingType]] = scroll_bindings(
        "label", "up down page-up page-down start-of-text end-of-text"
    )

    markdown = diff = False  # how texts are drawn; see `lay_out`
    _texts: ItemTexts | None = None
    _message: Sequence[Piece] = ()
    _headings: Sequence[int] = ()
    _end: Sequence[Piece] = ()  # the rule on the last line of the screen if more is below
    _start = 0  # the first visible line when the item was shown

    def show(self, texts: ItemTexts | None, message: Sequence[Piece] = ()) -> None:
        """Show an item from the start of its prompt, or from the end of a long one; None: a message with such roles."""
        self._texts, self._message = texts, message
        self.lay_out(from_start=True)

    def action_page_up(self) -> None:
        self.scroll_relative(y=-max(self.scrollable_content_region.height - _RULES, 1), animate=False, force=True)

    def action_page_down(self) -> None:
        self.scroll_relative(y=max(self.scrollable_content_region.height - _RULES, 1), animate=False, force=True)

    def wrap(self, width: int) -> Sequence[Line]:
        if self._texts:
            lines, self._headings, self._end = lay_out(self._texts, width, markdown=self.markdown, diff=self.diff)
            lines.append([*self._end])
            tallest = len(lines)  # what follows comes right below the texts
        else:
            message = wrapped(self._message, min(max(width - 4, 2), 72))
            margin: Line = [(" " * max((width - 72) // 2, 2), "text")]
            above: list[Line] = [[]] * max((self.scrollable_content_region.height - len(message)) // 3, 0)
            lines, self._headings, tallest = [*above, *([*margin, *line] for line in message)], (), None
        limit = self.styles.max_height
        if tallest != (limit.value if limit is not None else None):
            self.styles.max_height = tallest
        return lines

    def row(self, y: int) -> Sequence[Piece]:
        """Return row `y` of the screen: a line of the item, or a rule that shows the position."""
        above, height = self.scroll_offset.y, self.scrollable_content_region.height
        index = above + y
        if self._texts is not None and y == 0 and above:
            heading = bisect_right(self._headings, index)
            return _with_note(self._lines[self._headings[heading - 1] if heading else 0], f"↑ {above}")
        if self._texts is not None and y == height - 1 and index < len(self._lines) - 1:
            return _with_note(self._end, f"↓ {counted(len(self._lines) - index, 'more line')}")
        return super().row(y)

    def lay_out(self, *, from_start: bool = False) -> None:
        """Lay out everything for the current size; an item that was not scrolled yet stays at its start."""
        from_start = from_start or self.scroll_offset.y == self._start
        super().lay_out()
        height = self.scrollable_content_region.height
        if from_start:
            fits = len(self._lines) <= height or not self._headings
            self._start = 0 if fits else max(self._headings[0] - height // 3, 0)
            self.scroll_to(y=self._start, animate=False, force=True)
