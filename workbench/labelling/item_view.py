"""Item to judge as it is drawn: the prompt, and below it the completions, side by side or one below the other.

Both sides have the same width and the same marks, so that only their texts differ.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len
from textual.binding import BindingType

from trainer.errors import counted
from workbench.kit.drawing import ScrolledLines, scroll_bindings, wrapped
from workbench.kit.word_diff import word_diff
from workbench.labelling.texts import ItemTexts, Turn, alike, for_reading
from workbench.text import Line, Piece, beside, fit, visible

if TYPE_CHECKING:
    from rich.style import Style
    from textual.timer import Timer

SIDE_BY_SIDE = 98  # columns of the pane in a terminal with 100 columns
_SHORT_BESIDE = 60  # columns from which two completions that fit the screen are side by side, too
_MARGIN = 48  # columns of a text from which roles are in its margin
_LONGEST_ROLE = 12
_WIDEST = 120  # columns of a line that can be read
LONGEST = 100_000  # characters of a text that are shown
_LONGEST_MARKDOWN = 20_000  # characters: a longer text takes too long to lay out
_NARROWEST = 12
_ROLES = (
    *("rule", "heading", "key", "role", "text", "quiet", "differs", "strong", "emphasis", "struck", "code", "muted"),
    *("better", "worse"),
)
_PROMPT = 3  # a long prompt leaves the completions all but this part of the screen
_FRAME = 3  # lines of rules around the prompt and the completions
_RULES = 2  # lines of a screenful that show the position

# These would change the text: decoded entities may be control characters, and definitions disappear.
_LEFT_ALONE = ["entity", "image", "reference", "html_block", "html_inline"]


def lay_out(
    texts: ItemTexts, width: int, height: int = 0, *, markdown: bool = False, diff: bool = False
) -> tuple[list[Line], list[int], Line]:
    """Lay out an item in lines of at most `width` columns (at least 12), and at least `height` lines.

    Two completions are side by side where there is room, or where both fit the screen like that. Returns the lines, the
    indexes of the completions' headings, and a rule for the end of the texts. markdown: draw the texts as Markdown.
    diff: mark the words that two completions do not share, instead.
    """
    width = max(width, _NARROWEST)
    texts, count = for_reading(texts), len(texts.completions)
    prompt = text_lines(texts.prompt, min(width - 2, _WIDEST), markdown, quiet="assistant")
    marked = differing(*texts.completions) if diff and count == 2 else (None,) * count
    for columns in (2, 1) if count == 2 and width >= _SHORT_BESIDE else (1,):
        side = (width + 1) // columns - 1
        blocks = [
            text_lines(turns, min(side - 2, _WIDEST), markdown, of_one)
            for turns, of_one in zip(texts.completions, marked, strict=True)
        ]
        if width >= SIDE_BY_SIDE or max(map(len, blocks)) <= height - min(len(prompt), height // _PROMPT) - _FRAME:
            break
    bar = "│", "rule"
    whole = columns * (side + 1) - 1
    lines = [_rule(["prompt"], whole), *beside([prompt], whole, bar)]
    headings = []
    for first in range(0, count, columns):
        headings.append(len(lines))
        lines.append(_rule([str(number + 1) for number in range(first, first + columns)], side, joint="┬"))
        lines += beside(blocks[first : first + columns], side, bar)
    blank: list[Line] = [[(" " * side, "text"), bar]] if columns == 2 else [[]]
    lines += blank * (height - 1 - len(lines))
    return lines, headings, _rule([""] * columns, side, joint="┴")


def text_lines(
    turns: Sequence[Turn],
    width: int,
    markdown: bool,
    marked: Sequence[Sequence[Piece]] | None = None,
    quiet: str = "user",
) -> list[Line]:
    """Wrap messages, or a text, to lines of at most `width` columns after a space.

    Roles are in a margin, or on a line of their own where the texts are narrow. marked: the text of each in pieces with
    roles. quiet: role of the turns that are not what to look at.
    """
    lines: list[Line] = []
    names = [visible(role) for role, _ in turns]
    margin = min(max(map(cell_len, names), default=0), _LONGEST_ROLE)
    in_margin = margin > 0 and width >= _MARGIN
    indent = margin + 2 if in_margin else 2 if margin and width > _NARROWEST else 0
    for place, ((role, text), name) in enumerate(zip(turns, names, strict=True)):
        usual = "quiet" if role == quiet else "text"
        if not text.strip():
            of_one = wrapped([("only white space" if text else "empty", "muted")], width - indent)
        else:
            as_markdown = marked is None and markdown and len(text) <= _LONGEST_MARKDOWN
            of_one = (markdown_lines(text, width - indent) if as_markdown else None) or wrapped(
                [(text[:LONGEST], usual)] if marked is None else marked[place], width - indent
            )
        if len(text) > LONGEST:
            left_out = f"✂ {counted(len(text) - LONGEST, 'more character')} not shown"
            of_one += wrapped([(left_out, "muted")], width - indent)
        if name and not in_margin:
            lines.append([(" ", "text"), (fit(name, min(cell_len(name), width)), "role")])
        for row, line in enumerate(of_one):
            before = f"{fit(name, margin)}  " if in_margin and not row else " " * indent
            lines.append([(f" {before}", "role"), *line])
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
    """Return a rule with a title for each side, of three pieces after its joint. width: columns of each side."""
    line: Line = []
    for place, title in enumerate(titles):
        title = f" {title} " if title else ""
        line += [(joint, "rule")] if place else []
        line += [
            ("──", "rule"),
            (title, "key" if title[1:-1].isdecimal() else "heading"),
            ("─" * (width - 2 - len(title)), "rule"),
        ]
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
    wants_diff: bool | None = None  # None: where the texts have most words in common
    _marks: Mapping[int, Piece] = {}  # of the choice made last, with roles, by the place of its side
    _fading: Timer | None = None  # until they go
    _texts: ItemTexts | None = None
    _message: Sequence[Piece] = ()
    _headings: Sequence[int] = ()
    _end: Sequence[Piece] = ()  # the rule on the last line of the screen if more is below
    _start = 0  # the first visible line when the item was shown

    def show(self, texts: ItemTexts | None, message: Sequence[Piece] = ()) -> None:
        """Show an item from the start of its prompt, or from the end of a long one; None: a message with such roles."""
        self.acknowledge({})
        self._texts, self._message = texts, message
        self.lay_out(from_start=True)

    def acknowledge(self, marks: Mapping[int, Piece], seconds: float = 0) -> None:
        """Mark sides of the screen for some seconds, while the next item is shown."""
        if self._fading is not None:
            self._fading.stop()
        self._fading = self.set_timer(seconds, partial(self.acknowledge, {})) if seconds else None
        self._marks = marks if seconds else {}
        self.refresh()

    def action_page_up(self) -> None:
        self.scroll_relative(y=-max(self.scrollable_content_region.height - _RULES, 1), animate=False, force=True)

    def action_page_down(self) -> None:
        self.scroll_relative(y=max(self.scrollable_content_region.height - _RULES, 1), animate=False, force=True)

    def wrap(self, width: int) -> Sequence[Line]:
        if self._texts:
            is_alike = not self.markdown and alike(*self._texts.completions)
            self.diff = is_alike if self.wants_diff is None else self.wants_diff
            height = self.scrollable_content_region.height
            how = {"markdown": self.markdown, "diff": self.diff}
            lines, self._headings, self._end = lay_out(self._texts, width, height, **how)
            lines.append([*self._end])
        else:
            message = wrapped(self._message, min(max(width - 4, 2), 72))
            margin: Line = [(" " * max((width - 72) // 2, 2), "text")]
            above: list[Line] = [[]] * max((self.scrollable_content_region.height - len(message)) // 3, 0)
            lines, self._headings = [*above, *([*margin, *line] for line in message)], ()
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
        line = [*super().row(y)]
        if self._marks and index in self._headings:
            columns = 2 if self._end[3:] else 1
            first = columns * self._headings.index(index)
            for place in {*range(first, first + columns)} & {*self._marks}:  # a heavy line, and a mark after the number
                (mark, role), side = self._marks[place], slice(4 * (place - first), 4 * (place - first) + 3)
                (before, _), number, (after, _) = line[side]
                line[side] = [("━" * len(before), role), number, (f" {mark} ".ljust(len(after), "━"), role)]
        return line

    def lay_out(self, *, from_start: bool = False) -> None:
        """Lay out everything for the current size; an item that was not scrolled yet stays at its start."""
        from_start = from_start or self.scroll_offset.y == self._start
        super().lay_out()
        height = self.scrollable_content_region.height
        if from_start:
            fits = len(self._lines) <= height or not self._headings
            self._start = 0 if fits else max(self._headings[0] - height // 3, 0)
            self.scroll_to(y=self._start, animate=False, force=True)
