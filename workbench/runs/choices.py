"""The list of what can be done next, above the runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

from textual import events
from textual.binding import BindingType

from workbench.kit.cursor_list import CursorList, cursor_bindings, under_cursor
from workbench.run.run_listing import Workspace
from workbench.text import Line, fit_start

_GAP = "  "


class Choice(NamedTuple):
    """Something to do. what: its name for the program. title, text: safe to print.

    key: the name of its binding, without `home.`; in the list, the key.
    """

    key: str
    what: str
    title: str
    text: str


class HomeFacts(NamedTuple):
    """Content of the pane besides the runs: choices, the labels added since the last visit, and the machine."""

    choices: Sequence[Choice] = ()
    labels: int = 0
    machine: str = ""


FactsReader = Callable[[], Callable[[Workspace | None], HomeFacts]]
"""Returns a function that reads the facts on a thread; for None in place of the runs, it reads no file."""


class HomeChoices(CursorList[Choice]):
    """The choices, which look and work like buttons."""

    CSS_NAME = "home-choices"
    HEADER_HEIGHT = 1
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"home-choices--{role}" for role in ("key", "title", "cursor", "muted")}
    BINDINGS: ClassVar[list[BindingType]] = cursor_bindings("home", "choice")

    def show(self, choices: Sequence[Choice]) -> None:
        """Show the choices."""
        self._items = choices
        self.styles.height = len(choices) + 2
        self.put_cursor(self.cursor)

    def click_item(self, event: events.Click, *, again: bool) -> None:
        self.post_message(self.Opened())

    def header_line(self, width: int) -> Line:
        return [(fit_start("  What do you want to do?", width), "muted")]

    def item_line(self, index: int, line: int, width: int) -> Line:
        choice, longest = self._items[index], max(len(one.title) for one in self._items)
        head = f"{_GAP}{choice.key}{_GAP}{choice.title:{longest}}{_GAP}"
        pieces: Line = [(_GAP, ""), (choice.key, "key"), (head[len(_GAP + choice.key) :], "title")]
        pieces.append((fit_start(choice.text, width - len(head)), "muted"))
        return under_cursor(pieces, width) if index == self.cursor and self.has_focus else pieces
