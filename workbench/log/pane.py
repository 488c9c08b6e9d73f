"""The log pane: starts, alerts and ends of runs, and what libraries and native code print meanwhile."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.events import Print
from textual.widgets import Input, Static

from trainer.errors import counted
from trainer.events import Event, RunEnded, RunStarted
from workbench.kit.cursor_list import CursorList, FilterField, cursor_bindings, under_cursor
from workbench.kit.drawing import CutText
from workbench.kit.keys import bind, hidden_key
from workbench.kit.pane import Badge, Pane, Throttled
from workbench.kit.saving import ask_and_save, write_lines
from workbench.run.sentences import level_sign, resumption, sentences
from workbench.run.view import RunView
from workbench.system.output import cut_log
from workbench.text import Line, duration, fit_start, has_words, moment, visible

LEVELS = ("info", "warning", "error")
_ENDS = {"done": "✓", "stopped": "■"}
_TRACEBACK = "Traceback (most recent call last)"
_ERROR = re.compile(r"\b(error|exception|fatal|critical|abort(ed)?|segmentation fault)\b|\w(Error|Exception)\b", re.I)
_WARNING = re.compile(r"\bwarn(ing)?\b|Warning\b", re.I)
_BEFORE_TEXT = 12  # columns of time and sign
_KEPT = 2000  # lines
_LONGEST = 2000  # columns of a line that are shown
_JUST = 5  # lines in which an error is not repeated
_AT_ONCE = 64 * 1024  # bytes read from the file in one go


class Entry(NamedTuple):
    """A line of the log, safe to print. at: unix seconds. goes_on: belongs to the line before it."""

    text: str
    level: str
    at: float
    goes_on: bool = False
    mark: str = ""  # instead of the sign of its level

    @property
    def head(self) -> str:
        """Local time and sign; blanks of the same width where it belongs to the line before it."""
        clock = time.strftime("%H:%M:%S", time.localtime(self.at))
        return " " * 10 if self.goes_on else f"{clock} {self.mark or level_sign(self.level)}"

    @property
    def plain(self) -> str:
        """The line as it is saved and copied."""
        return f"{self.head} {self.text}"


def printed_entry(text: str, before: Entry | None, at: float) -> Entry:
    """Return the entry of a printed line; its severity is guessed from its words, or goes on in a traceback."""
    begun = " " if before and before.goes_on else _TRACEBACK
    if before and before.level == "error" and before.text.startswith(begun):
        return Entry(text, "error", at, goes_on=True)
    if text.startswith(_TRACEBACK) or _ERROR.search(text):
        return Entry(text, "error", at)
    return Entry(text, "warning" if _WARNING.search(text) else "info", at)


def run_entries(name: str, event: Event, at: float) -> list[Entry]:
    """Return the lines for the start of the run `name`, an alert, or the end. Of another day, they have the date."""
    on = "" if time.localtime(at)[:3] == time.localtime()[:3] else f" {moment(at)}"
    level, mark = getattr(event, "level", "warning"), ""
    match event:
        case RunStarted():
            begun = "started" if event.resumed_at is None else resumption(event.resumed_at)
            what = f"{event.model}, {counted(event.iterations, 'iteration')}, seed {event.seed}"
            lines = [f"{name} {begun}{on}: {what}", *event.warnings]
            level, mark = "warning" if event.warnings else "info", "▸"
        case RunEnded():
            lasted = f" after {duration(event.seconds)}" if event.seconds else ""
            lines = [": ".join(filter(None, (f"{name} {event.state}{on}{lasted}", event.reason)))]
            level, mark = "error" if event.state == "failed" else "info", _ENDS.get(event.state, "")
        case _:
            first, *others = sentences(event)
            lines = [f"{name}, {first}", *(line.partition(": ")[2] for line in others)]  # without the iteration
    return [Entry(visible(line), level, at, number > 0, mark) for number, line in enumerate(lines)]


class LogList(CursorList[Entry]):
    """The shown lines, with a cursor; while it is on the last one, it follows new lines."""

    CSS_NAME = "log-list"
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"log-list--{role}" for role in (*LEVELS, "muted", "cursor")}
    BINDINGS: ClassVar[list[BindingType]] = cursor_bindings("log", "line")

    def show(self, entries: Sequence[Entry], *, dropped: int = 0, message: str = "") -> None:
        """Show `entries`. dropped: so many of those shown before are no longer among them, at the beginning."""
        follows = self.cursor >= len(self.items) - 1
        self.items, self._message = entries, message
        self.put_cursor(len(entries) - 1 if follows else self.cursor - dropped)
        self.post_message(self.Moved())

    def text_of_line(self, index: int) -> tuple[str, str] | None:
        """Return the whole line, also what has no room."""
        found = super().text_of_line(index)
        if found is None or index >= len(self.items):
            return found
        return found[0][:_BEFORE_TEXT] + self.items[index].text, "\n"

    def item_line(self, index: int, line: int, width: int) -> Line:
        entry = self.items[index]
        role = entry.level if entry.level in LEVELS else "warning"
        pieces = [
            (entry.head[:9], "muted"),
            (f"{entry.head[9:]}  ", role),
            (fit_start(entry.text, width - _BEFORE_TEXT), "" if role == "info" else role),
        ]
        return under_cursor(pieces, width) if index == self.cursor else pieces


class LogPane(Pane):
    """Pane of starts, alerts and ends of runs, the log file of native output, and what Python code prints."""

    TITLE = "Log"
    HELP = (
        "Starts, alarms with their advice, and ends of runs, and what libraries print: downloads, warnings, native "
        "errors. The file named on the border keeps what they print. On the last line, the list follows new ones."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("slash", "filter", "filter", "log.filter", "Show the lines with these words"),
        bind("v", "severity", "severity", "log.severity", "Show all, warnings and errors, or errors"),
        bind("x", "export", "save", "log.export", "Save the lines that are shown"),
        bind("y", "copy", "copy", "log.copy", "Copy the line under the cursor"),
        hidden_key("escape", "back", "all lines", "log.back", "Remove the filter"),
    ]

    def __init__(self, path: Path | None, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._path = path
        self._offset: int | None = None  # in the file, once its size at the start is known
        self._reading = Throttled(rests=False)
        self._entries: list[Entry] = []
        self._dropped = 0  # of the entries, since they were shown
        self._least = 0  # index in LEVELS of the least severe lines that are shown
        self._unread = 0  # errors
        self._changed = False  # entries have come since they were shown
        self._view: RunView | None = None
        self._written = 0  # events of the log of that run

    @property
    def is_empty(self) -> bool:
        """Return whether the log has no line yet."""
        return not self._entries

    def compose(self) -> ComposeResult:
        yield LogList()
        yield FilterField("words in a line")
        yield CutText(most=6, id="log-line")

    def on_mount(self) -> None:
        self.begin_capture_print()
        self.read_new()
        self.set_interval(1.0, self.read_new)
        self._show()

    def show_run(self, view: RunView) -> None:
        past = view is not self._view  # a run that is opened has had its errors
        if past or view.logged < self._written:
            self._view, self._written = view, 0
        new, self._written = view.logged - self._written, view.logged
        name = view.started.name if view.started else ""
        told = view.log[-new:] if new else []
        self._add([entry for at, event in told for entry in run_entries(name, event, at)], read=past)

    def on_print(self, event: Print) -> None:
        """Show what Python code of this process prints."""
        self.write(event.text)

    @work(group="reading")
    async def read_new(self) -> None:
        """Show what was added to the file since the first call, at most the last 64 KiB."""
        if self._path is not None:
            found = await self._reading.read(partial(_read, self._path, self._offset))
            if found is not None:
                text, self._offset = found
                self.write(text)

    def write(self, text: str) -> None:
        """Add lines; text after a carriage return replaces the line, as in progress bars."""
        at, before, entries = time.time(), self._entries[-1] if self._entries else None, []
        for line in text.replace("\r\n", "\n").split("\n"):
            if shown := fit_start(visible(line.rpartition("\r")[2]).rstrip(), _LONGEST):
                before = printed_entry(shown, before, at)
                entries.append(before)
        self._add(entries)

    def report(self, problem: str) -> None:
        """Add a problem of the run that is in no journal, one line or more."""
        lines = [visible(line) for line in problem.splitlines()]
        errors = (entry.text for entry in self._entries[-_JUST:] if entry.level == "error")
        if not any(text.endswith(lines[0]) for text in errors):  # the end of the run may have just said so
            self._add([Entry(line, "error", time.time(), number > 0) for number, line in enumerate(lines)])

    def on_show(self) -> None:
        self._unread, self.badge = 0, Badge()
        if self._changed:
            self._show()

    def _add(self, entries: Sequence[Entry], *, read: bool = False) -> None:
        """Add lines. read: their errors do not count as unread."""
        if not entries:
            return
        self._entries += entries
        too_many = max(len(self._entries) - _KEPT, 0)
        self._dropped += sum(map(self._shows, self._entries[:too_many]))
        del self._entries[:too_many]
        self._changed = True
        if self.is_on_screen:
            self._show()
            return
        self._unread += sum(entry.level == "error" and not entry.goes_on for entry in entries if not read)
        if self._unread:
            self.badge = Badge(f"{level_sign('error')}{self._unread}", "error")

    def _shows(self, entry: Entry) -> bool:
        level = LEVELS.index(entry.level) if entry.level in LEVELS else 1
        return level >= self._least and has_words(entry.text, self.query_one(FilterField).value)

    @on(Input.Changed)
    def _show(self) -> None:
        shown = [entry for entry in self._entries if self._shows(entry)]
        message = (
            "No matching lines"
            if self._entries
            else "Nothing yet. Starts, alarms and ends of runs come here, and the output of libraries."
        )
        self.query_one(LogList).show(shown, dropped=self._dropped, message=message)
        self._dropped, self._changed = 0, False
        least = ("", "warnings and errors", "errors")[self._least]
        found = f"{len(shown)} of {len(self._entries)}" if len(shown) < len(self._entries) else ""
        self.border_subtitle = ", ".join(filter(None, (least, found, visible(str(self._path or "")))))

    @on(LogList.Moved)
    def _show_line(self) -> None:
        """Show the whole of a line that has no room for it."""
        table, whole = self.query_one(LogList), self.query_one("#log-line", Static)
        text = table.selected.text if table.selected else ""
        whole.display = len(text) > table.scrollable_content_region.width - _BEFORE_TEXT
        whole.update(text)
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("export", "copy"):
            return self.query_one(LogList).selected is not None
        return action != "back" or self.query_one(FilterField).display

    def action_filter(self) -> None:
        self.query_one(FilterField).open()

    def action_back(self) -> None:
        self.query_one(FilterField).clear_filter()

    def action_severity(self) -> None:
        """Show only lines that are more severe; after the most severe, all."""
        self._least = (self._least + 1) % len(LEVELS)
        self._show()

    def action_copy(self) -> None:
        if (entry := self.query_one(LogList).selected) is not None:
            self.copy(entry.plain, "the line")

    def action_export(self) -> None:
        lines = [entry.plain for entry in self._entries if self._shows(entry)]
        ask_and_save(self, "Save the shown lines as", "log.txt", lambda path: write_lines(path, lines))


def _read(path: Path, offset: int | None) -> tuple[str, int] | None:
    """Return what was added to the file after `offset`, and the offset to go on from; None if it cannot be read.

    offset: None to skip what is there.
    """
    size = _size(path)
    if offset is None or size == offset:
        return "", size
    start = offset if offset < size <= offset + _AT_ONCE else max(size - _AT_ONCE, 0)
    try:
        with path.open("rb") as file:
            file.seek(start)
            text = file.read(size - start).decode("utf-8", "replace")
    except OSError:
        return None
    return text, _size(path) if cut_log(path) else size


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
