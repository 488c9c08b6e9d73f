"""Rows of the form: sections and settings with their state, as text, and the list that shows them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.cells import cell_len
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from workbench.columns import fit
from workbench.config.document import ConfigDocument
from workbench.config.fields import FormField, fields_by_key, search, sections, shown
from workbench.kit.cursor_list import CursorList, cursor_bindings, under_cursor
from workbench.kit.lines import Line
from workbench.text import visible

_GUTTER = 3  # a mark for a problem or change, one for unsaved, and a space
_LIVE = 5
_UNIT = 14
_NARROW = 56  # columns; a narrower line has no room for units
_TABLE = 76  # most columns of a row: further apart, name and value are hard to match
_HELP = 40  # columns beside the table from which the help is shown there too
_ROLES = ("name", "value", "changed", "muted", "live", "mark", "problem", "locked", "section", "cursor")


@dataclass(frozen=True)
class SectionRow:
    """Heading of a table of the configuration."""

    key: str
    purpose: str
    is_open: bool
    changed: int
    problems: int


@dataclass(frozen=True)
class FieldRow:
    """Row of one setting and its state."""

    field: FormField
    value: Any
    was: str
    """Preset's value, for display; empty if it is the same."""
    unsaved: bool
    problem: str
    locked: bool
    """True if the setting cannot be changed now."""
    sent: bool
    """True if the run has yet to confirm the value that was sent."""
    draft: bool = False
    """True if the value was typed but not sent, so that the run still has its own."""

    @property
    def key(self) -> str:
        return self.field.key


Row = SectionRow | FieldRow


def rows_of(
    document: ConfigDocument,
    *,
    folded: Collection[str] = (),
    query: str = "",
    running: bool = False,
    sent: Collection[str] = (),
    draft: Mapping[str, Any] = {},
) -> list[Row]:
    """Return the rows of the form: sections and their settings, or only those that `query` finds.

    folded: sections that show only their headings. sent: settings that were sent to a run and are not confirmed yet.
    draft: values that are proposed, by setting.
    """
    changes = document.changes
    problems = {problem.setting: problem.message for problem in reversed(document.problems)}
    found = {field.key for field in search(query)}
    rows: list[Row] = []
    for section, purpose in sections().items():
        fields = [f for key, f in fields_by_key().items() if key.startswith(f"{section}.") and key in found]
        if not fields:
            continue
        is_open = bool(query) or section not in folded
        changed = sum(field.key in changes and changes[field.key].from_preset for field in fields)
        broken = sum(key.partition(".")[0] == section for key in problems)
        rows.append(SectionRow(section, purpose, is_open, changed, broken))
        for field in fields if is_open else ():
            change = changes.get(field.key)
            was = shown(field, change.preset) if change and change.from_preset else ""
            rows.append(
                FieldRow(
                    field=field,
                    value=draft[field.key] if field.key in draft else document.get(field.key),
                    was=was,
                    unsaved=bool(change and change.unsaved),
                    problem=problems.get(field.key, ""),
                    locked=bool(document.syntax_error) or (running and not field.about.live),
                    sent=field.key in sent,
                    draft=field.key in draft,
                )
            )
    return rows


def row_line(row: Row, width: int) -> Line:
    """Format `row` as pieces of at most `width` columns in total."""
    return _section_line(row, width) if isinstance(row, SectionRow) else _field_line(row, width)


def value_span(row: FieldRow, width: int) -> range:
    """Return the columns for the value of `row` on a line of `width` columns: after the name, right-aligned."""
    table = min(width, _TABLE)
    stop = table - _LIVE - (_UNIT if width >= _NARROW else 0)
    return range(min(_GUTTER + len(row.field.name) + 1, max(stop - 1, 0)), stop)


def _section_line(row: SectionRow, width: int) -> Line:
    head = f"{'▾' if row.is_open else '▸'} {row.key}"
    counts: Line = []
    if row.problems:
        counts.append((f"✖ {row.problems} ", "problem"))
    if row.changed and not row.is_open:
        counts.append((f"• {row.changed} changed ", "mark"))
    room = min(width, _TABLE) - cell_len(head) - sum(cell_len(text) for text, _ in counts) - 2
    purpose = row.purpose.rstrip(".") if cell_len(row.purpose) <= room else ""
    return [(head, "section"), (fit(f"  {purpose}", max(room + 2, 0)), "muted"), *counts]


def _field_line(row: FieldRow, width: int) -> Line:
    field, about = row.field, row.field.about
    span = value_span(row, width)
    value = fit(visible(shown(field, row.value)).strip(), span.stop - span.start, right=True)
    first = ("✖", "problem") if row.problem else ("•", "mark") if row.was else (" ", "name")
    pieces: Line = [first, ("*" if row.unsaved else " ", "mark"), (" ", "name")]
    pieces.append((fit(field.name, span.start - _GUTTER), "locked" if row.locked else "name"))
    bare = value.lstrip(" ")
    room = cell_len(value) - cell_len(bare)
    was = visible(f"was {row.was}")
    if row.was and cell_len(was) + 2 <= room:
        pieces.append((f"{' ' * (room - cell_len(was) - 2)}{was}  ", "muted"))
    else:
        pieces.append((" " * room, "name"))
    pieces.append((bare, _value_role(row)))
    if width >= _NARROW:
        pieces.append((fit(f" {about.unit}", _UNIT), "muted"))
    live = "↵" if row.draft else "sent" if row.sent else "live" if about.live else ""
    pieces.append((fit(f" {live}", _LIVE), "live"))
    if width >= _TABLE + _HELP:
        room = width - _TABLE - 2
        text = about.help if len(about.help) <= room else f"{about.help[: room - 1]}…"
        pieces.append((f"  {text:{room}}", "muted"))
    return pieces


def _value_role(row: FieldRow) -> str:
    if row.problem:
        return "problem"
    if row.locked:
        return "locked"
    if row.was or row.draft:
        return "changed"
    return "muted" if row.value in ("", []) else "value"


class ConfigRows(CursorList[Row]):
    """List of sections and settings with a cursor."""

    CSS_NAME = "config-rows"
    MARGIN = 2
    _message = "  No matching settings"
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"config-rows--{role}" for role in _ROLES}
    BINDINGS: ClassVar[list[BindingType]] = [
        *cursor_bindings("config", "row"),
        Binding("enter", "choose", "edit", id="config.edit", tooltip="Edit the value, or fold the section"),
        Binding("right,plus", "step(1)", "more", show=False, id="config.more", tooltip="Raise the value, or unfold"),
        Binding("left,minus", "step(-1)", "less", show=False, id="config.less", tooltip="Lower the value, or fold"),
    ]

    class Chosen(Message):
        """Request to edit or fold the row under the cursor."""

    class Stepped(Message):
        """Request to step the value under the cursor up (direction 1) or down (-1)."""

        def __init__(self, direction: int) -> None:
            super().__init__()
            self.direction = direction

    @property
    def line(self) -> int:
        """Line of this widget with the cursor, from 0."""
        return self.cursor - self.scroll_offset.y

    def show(self, rows: Sequence[Row]) -> None:
        """Show other rows; the cursor stays on its key, or near its place."""
        key = self.selected.key if self.selected else None
        same_place = (place for place, row in enumerate(rows) if row.key == key)
        self._items = rows
        self.put_cursor(next(same_place, self.cursor))

    def go_to(self, key: str) -> bool:
        """Move the cursor to the row of `key`; return False if there is none."""
        for place, row in enumerate(self._items):
            if row.key == key:
                self.cursor = place
                return True
        return False

    def action_page(self, by: int) -> None:
        self.cursor += by * max(self.size.height - 1, 1)

    def action_choose(self) -> None:
        self.post_message(self.Chosen())

    def action_step(self, direction: int) -> None:
        self.post_message(self.Stepped(direction))

    def click_item(self, event: events.Click, *, again: bool) -> None:
        if again or event.x < 2:
            self.post_message(self.Chosen())

    def item_line(self, index: int, line: int, width: int) -> Line:
        pieces = row_line(self._items[index], width)
        return under_cursor(pieces, width) if index == self.cursor else pieces
