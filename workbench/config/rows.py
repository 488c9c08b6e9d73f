"""Rows of the form: sections and settings with their state, as text, and the list that shows them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.cells import cell_len
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from trainer.config.reference import Setting
from workbench.columns import fit, fit_start, padded
from workbench.config.document import ConfigDocument
from workbench.config.fields import BASIC, fields_by_key, search, sections, shown
from workbench.kit.cursor_list import CursorList, cursor_bindings, under_cursor
from workbench.kit.lines import Line
from workbench.text import visible

_GUTTER = 3  # a mark for a problem or change, one for unsaved, and a space
_LIVE = 5
_UNIT = 14
_NARROW = 56  # columns; a narrower line has no room for units
_TABLE = 76  # most columns of a row: further apart, name and value are hard to match
_HELP = 40  # columns beside the table from which the help is shown there too
CHANGED = "changed"
"""Key of the first section, which lists what differs from the preset."""
_ROLES = ("name", "value", "changed", "muted", "live", "mark", "problem", "locked", "section", "cursor")


@dataclass(frozen=True)
class SectionRow:
    """Heading of a table of the configuration."""

    key: str
    purpose: str
    is_open: bool
    changed: int
    problems: int
    shown: int
    """Number of its settings in this view, folded or not."""
    title: str

    @property
    def spot(self) -> str:
        """Return what tells this row from all others."""
        return self.key


@dataclass(frozen=True)
class FieldRow:
    """Row of one setting and its state."""

    field: Setting
    value: Any
    was: str = ""
    """Preset's value, for display; empty if it is the same."""
    unsaved: bool = False
    problem: str = ""
    locked: bool = False
    """True if the setting cannot be changed now."""
    sent: bool = False
    """True if the run has yet to confirm the value that was sent."""
    proposed: bool = False
    """True if the value was not sent yet, so that the run still has its own."""
    listed: bool = False
    """True in the list of changes; the setting has another row in its section."""

    @property
    def key(self) -> str:
        return self.field.key

    @property
    def spot(self) -> str:
        """Return what tells this row from all others."""
        return f"{CHANGED} {self.key}" if self.listed else self.key

    @property
    def label(self) -> str:
        """Return the name that the row shows."""
        return self.key if self.listed else self.field.name


Row = SectionRow | FieldRow


def rows_of(
    document: ConfigDocument,
    *,
    everything: bool = False,
    query: str = "",
    folded: Collection[str] = (),
    keep: str = "",
    running: bool = False,
    sent: Collection[str] = (),
    proposed: Mapping[str, Any] = {},
) -> list[Row]:
    """Return the rows of the form: what differs from the preset, then sections and their settings.

    everything: not only the basic settings, and those that differ from preset or file or have a problem. query: words
    that the settings are searched for. folded: sections that show only their headings. keep: spot of a setting that is
    shown in any case. sent: settings that were sent to a run and are not confirmed yet. proposed: values to be sent.
    """
    fields, changes = fields_by_key(), document.changes
    problems = {problem.setting: problem.message for problem in reversed(document.problems)}
    differs = {key for key, change in changes.items() if change.from_preset}

    def row(field: Setting, *, listed: bool = False) -> FieldRow:
        key, change = field.key, changes.get(field.key)
        return FieldRow(
            field=field,
            value=proposed[key] if key in proposed else document.get(key),
            was=shown(field, change.preset) if change and change.from_preset else "",
            unsaved=bool(change and change.unsaved),
            problem=problems.get(key, ""),
            locked=bool(document.syntax_error) or (running and not field.live),
            sent=key in sent,
            proposed=key in proposed,
            listed=listed,
        )

    rows: list[Row] = []
    listed = [] if query else [key for key in fields if key in differs or keep == f"{CHANGED} {key}"]
    if listed:
        is_open = CHANGED not in folded
        purpose = f"from {'the preset' if document.preset else 'the defaults'} (also in their sections)"
        rows.append(SectionRow(CHANGED, purpose, is_open, len(differs), 0, 0, "Changed settings"))
        rows += [row(fields[key], listed=True) for key in listed if is_open]
    found = {field.key for field in search(query)}
    if not (everything or query):
        found &= {*BASIC, *changes, *problems, *sent, *proposed, keep}
    for section, purpose in sections().items():
        own = [field for key, field in fields.items() if key in found and key.startswith(f"{section}.")]
        if own:
            is_open = bool(query) or section not in folded
            changed = sum(field.key in differs for field in own)
            broken = sum(key.partition(".")[0] == section for key in problems)
            rows.append(SectionRow(section, purpose.rstrip("."), is_open, changed, broken, len(own), section))
            rows += [row(field) for field in own if is_open]
    return rows


def keys_of(row: Row, document: ConfigDocument) -> list[str]:
    """Return the key of the setting of `row`, or those of the settings in its section."""
    if isinstance(row, FieldRow):
        return [row.key]
    if row.key == CHANGED:
        return [key for key, change in document.changes.items() if change.from_preset]
    return [key for key in fields_by_key() if key.startswith(f"{row.key}.")]


def value_span(row: FieldRow, width: int) -> range:
    """Return the columns for the value of `row` on a line of `width` columns: after the name, right-aligned."""
    table = min(width, _TABLE)
    stop = table - _LIVE - (_UNIT if width >= _NARROW else 0)
    return range(min(_GUTTER + len(row.label) + 1, max(stop - 1, 0)), stop)


def row_line(row: Row, width: int) -> Line:
    """Format `row` as pieces of at most `width` columns in total."""
    return _section_line(row, width) if isinstance(row, SectionRow) else _field_line(row, width)


def _section_line(row: SectionRow, width: int) -> Line:
    head = f"{'▾' if row.is_open else '▸'} {row.title}"
    counts: Line = []
    if row.problems:
        counts.append((f"✖ {row.problems} ", "problem"))
    if row.changed and not row.is_open:
        counts.append((f"• {row.changed} changed ", "mark"))
    room = min(width, _TABLE) - cell_len(head) - sum(cell_len(text) for text, _ in counts) - 2
    purpose = row.purpose if cell_len(row.purpose) <= room else ""
    return [(head, "section"), (fit(f"  {purpose}", max(room + 2, 0)), "muted"), *counts]


def _field_line(row: FieldRow, width: int) -> Line:
    field, span = row.field, value_span(row, width)
    first = ("✖", "problem") if row.problem else ("•", "mark") if row.was else (" ", "name")
    pieces: Line = [first, ("*" if row.unsaved else " ", "mark"), (" ", "name")]
    pieces.append((fit(row.label, span.start - _GUTTER), "locked" if row.locked else "name"))
    value = fit(visible(shown(field, row.value)).strip(), span.stop - span.start, right=True)
    bare = value.lstrip(" ")
    room = cell_len(value) - cell_len(bare)
    was = visible(f"was {row.was}  ") if row.was else ""
    pieces.append((padded(was if cell_len(was) <= room else "", room, right=True), "muted"))
    role = "muted" if row.value in ("", []) else "value"
    if row.problem or row.locked or row.was or row.proposed:
        role = "problem" if row.problem else "locked" if row.locked else "changed"
    pieces.append((bare, role))
    if width >= _NARROW:
        pieces.append((fit(f" {field.unit}", _UNIT), "muted"))
    live = "↵" if row.proposed else "sent" if row.sent else "live" if field.live else ""
    pieces.append((fit(f" {live}", _LIVE), "live"))
    if width >= _TABLE + _HELP:
        pieces.append((fit(f"  {fit_start(field.help, width - _TABLE - 2)}", width - _TABLE), "muted"))
    return pieces


class ConfigRows(CursorList[Row]):
    """List of sections and settings with a cursor."""

    CSS_NAME = "config-rows"
    MARGIN = 2
    _message = "  No matching settings"
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"config-rows--{role}" for role in _ROLES}
    BINDINGS: ClassVar[list[BindingType]] = [
        *cursor_bindings("config", "row"),
        Binding("enter", "choose", "edit", id="config.edit", tooltip="Edit, switch or send the value; fold a section"),
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
        """Show other rows; the cursor stays on its row and in its line, or near its place."""
        before, line, row = self.cursor, self.line, self.selected
        places = {shown.spot: place for place, shown in enumerate(rows)}
        wanted = (row.spot, row.key, row.key.partition(".")[0]) if row else ()
        self._items = rows
        place = next((places[spot] for spot in wanted if spot in places), before)
        self.put_cursor(place)
        if row is not None and place != before:
            self.scroll_to(y=place - line, animate=False, force=True)
            self.put_cursor(place)  # in view

    def go_to(self, key: str) -> bool:
        """Move the cursor to the row of `key`; return False if there is none."""
        place = next((place for place, row in enumerate(self._items) if row.spot == key), None)
        if place is not None:
            self.cursor = place
        return place is not None

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
