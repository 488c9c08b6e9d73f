"""A scrollable text with its differences from another text marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content

from workbench.kit.drawing import Line, plain
from workbench.kit.scrolled_lines import ScrolledLines
from workbench.kit.theming import no_color
from workbench.kit.word_diff import Part
from workbench.text import visible

_MARKS = {"gone": ("−", ""), "new": ("+", "")}  # in addition to strike and underline
_COLORLESS = {"gone": ("[-", "-]"), "new": ("{+", "+}")}  # as in git's word diff


def diff_lines(parts: Sequence[Part], width: int, *, colorless: bool = False) -> list[list[Part]]:
    """Wrap the parts in lines of at most `width` columns, with a mark at the start of each change.

    colorless: mark its end as well, so that a change is visible without styles.
    """
    marks = _COLORLESS if colorless else _MARKS
    shown = Content.assemble(*((_marked(part, *marks.get(part.kind, ("", ""))), part.kind) for part in parts))
    return [
        [Part(span.style, line.plain[span.start : span.end]) for span in line.spans]  # type: ignore[arg-type]
        for paragraph in shown.split("\n", allow_blank=True)
        for line in paragraph.wrap(max(width, 1))
    ]


class DiffText(ScrolledLines):
    """Scrollable text with its changes marked."""

    CSS_NAME = "diff-text"
    COMPONENT_CLASSES: ClassVar[set[str]] = {"diff-text--same", "diff-text--gone", "diff-text--new"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll_up", "Up", show=False, id="diff.up", tooltip="A line up"),
        Binding("down", "scroll_down", "Down", show=False, id="diff.down", tooltip="A line down"),
        Binding("pageup", "page_up", "Page up", show=False, id="diff.page-up", tooltip="A screenful up"),
        Binding("pagedown", "page_down", "Page down", show=False, id="diff.page-down", tooltip="A screenful down"),
        Binding("home", "scroll_home", "Start", show=False, id="diff.start", tooltip="The start of the text"),
        Binding("end", "scroll_end", "End", show=False, id="diff.end", tooltip="The end of the text"),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._parts: Sequence[Part] = ()

    @property
    def text(self) -> str:
        """The text as shown, with its marks."""
        return "\n".join(plain(line) for line in self._lines)

    def show(self, parts: Sequence[Part], *, from_start: bool = True) -> None:
        """Show these parts of a text. from_start: scroll to its start, else keep the scroll position."""
        self._parts = parts
        self.lay_out()
        if from_start:
            self.scroll_to(y=0, animate=False, force=True)

    def wrap(self, width: int) -> list[Line]:
        lines = diff_lines(self._parts, width, colorless=no_color())
        return [[(part.text, part.kind) for part in line] for line in lines]


def _marked(part: Part, before: str, after: str) -> str:
    """Return the part's text between marks, with the outer spaces outside them.

    A change that consists of spaces alone shows them as symbols.
    """
    text = part.text
    core = text.strip()
    if part.kind == "same":
        return visible(text, keep_newlines=True)
    if not core:
        newlines = "\n" * text.count("\n") if part.kind == "new" else ""
        return before + visible(text).replace(" ", "␣") + after + newlines
    start = text.index(core)
    around = text[:start], text[start + len(core) :]
    return visible(f"{around[0]}{before}{core}{after}{around[1]}", keep_newlines=True)
