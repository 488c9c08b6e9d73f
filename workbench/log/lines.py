"""Lines of the log, each with its time and severity, and the list that shows them."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from textual.binding import BindingType

from workbench.columns import fit_start
from workbench.kit.cursor_list import CursorList, cursor_bindings, under_cursor
from workbench.kit.lines import Line
from workbench.run.sentences import level_sign

LEVELS = ("info", "warning", "error")
_TRACEBACK = "Traceback (most recent call last)"
_ERROR = re.compile(r"\b(error|exception|fatal|critical|abort(ed)?|segmentation fault)\b|\w(Error|Exception)\b", re.I)
_WARNING = re.compile(r"\bwarn(ing)?\b|Warning\b", re.I)
_BEFORE_TEXT = 12  # columns of time and sign


class Entry(NamedTuple):
    """A line of the log, safe to print. at: unix seconds, None if unknown. goes_on: belongs to the line before it."""

    text: str
    level: str = "info"
    at: float | None = None
    goes_on: bool = False

    @property
    def clock(self) -> str:
        """Local time of the line, or blanks of the same width."""
        return " " * 8 if self.at is None else time.strftime("%H:%M:%S", time.localtime(self.at))

    @property
    def plain(self) -> str:
        """The line as it is saved and copied."""
        return f"{self.clock} {'' if self.goes_on else level_sign(self.level):1} {self.text}"


def printed_entry(text: str, before: Entry | None, at: float) -> Entry:
    """Return the entry of a printed line; its severity is guessed from its words, or goes on in a traceback."""
    if before is not None and before.level == "error" and (before.goes_on or before.text.startswith(_TRACEBACK)):
        ended = before.goes_on and not before.text.startswith(" ")
        if not ended:
            return Entry(text, "error", at, goes_on=True)
    if text.startswith(_TRACEBACK) or _ERROR.search(text):
        return Entry(text, "error", at)
    return Entry(text, "warning" if _WARNING.search(text) else "info", at)


class LogList(CursorList[Entry]):
    """The shown lines, with a cursor; while it is on the last one, it follows new lines."""

    CSS_NAME = "log-list"
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"log-list--{role}" for role in (*LEVELS, "muted", "cursor")}
    BINDINGS: ClassVar[list[BindingType]] = cursor_bindings("log", "line")

    def show(self, entries: Sequence[Entry], *, dropped: int = 0, message: str = "") -> None:
        """Show `entries`. dropped: so many of those shown before are no longer among them, at the beginning."""
        follows = self.cursor >= len(self._items) - 1
        self._items, self._message = entries, message
        self.put_cursor(len(entries) - 1 if follows else self.cursor - dropped)
        self.post_message(self.Moved())

    def is_cut(self, entry: Entry) -> bool:
        """Return whether a line has no room for its whole text."""
        return len(entry.text) > self.scrollable_content_region.width - _BEFORE_TEXT

    def text_of_line(self, index: int) -> tuple[str, str] | None:
        """Return the whole line, also what has no room."""
        found = super().text_of_line(index)
        if found is None or index >= len(self._items):
            return found
        return found[0][:_BEFORE_TEXT] + self._items[index].text, "\n"

    def item_line(self, index: int, line: int, width: int) -> Line:
        entry = self._items[index]
        sign = " " if entry.goes_on else level_sign(entry.level)
        role = entry.level if entry.level in LEVELS else "warning"
        pieces = [
            (f"{entry.clock} ", "muted"),
            (f"{sign}  ", role),
            (fit_start(entry.text, width - _BEFORE_TEXT), "" if role == "info" else role),
        ]
        return under_cursor(pieces, width) if index == self.cursor else pieces
