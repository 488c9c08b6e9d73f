"""Rows of the form: sections and settings with their state, as text, and the list that shows them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

from rich.cells import cell_len
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from workbench.columns import fit
from workbench.config.document import ConfigDocument
from workbench.config.fields import FormField, editable, fields_by_key, search, sections, shown
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


@dataclass
class Selection:
    """Choice of the settings that the form shows."""

    everything: bool = False
    """False: the basic settings, and those that differ from preset or file or have a problem."""
    query: str = ""
    """Words that the settings are searched for, all of them; empty for no search."""
    folded: set[str] = field(default_factory=set)
    """Sections that show only their headings."""


def rows_of(
    document: ConfigDocument,
    selection: Selection,
    *,
    keep: str = "",
    running: bool = False,
    sent: Collection[str] = (),
    draft: Mapping[str, Any] = {},
) -> list[Row]:
    """Return the rows of the form: what differs from the preset, then sections and their settings.

    keep: spot of a setting that is shown in any case. sent: settings that were sent to a run and are not confirmed yet.
    draft: values that are proposed, by setting.
    """
    changes = document.changes
    problems = {problem.setting: problem.message for problem in reversed(document.problems)}
    differs = {key for key, change in changes.items() if change.from_preset}

    def row(field: FormField, *, listed: bool = False) -> FieldRow:
        change = changes.get(field.key)
        return FieldRow(
            field=field,
            value=draft[field.key] if field.key in draft else document.get(field.key),
            was=shown(field, change.preset) if change and change.from_preset else "",
            unsaved=bool(change and change.unsaved),
            problem=problems.get(field.key, ""),
            locked=bool(document.syntax_error) or (running and not field.about.live),
            sent=field.key in sent,
            draft=field.key in draft,
            listed=listed,
        )

    fields = fields_by_key()
    rows: list[Row] = []
    listed = [] if selection.query else [key for key in fields if key in differs or keep == f"{CHANGED} {key}"]
    if listed:
        is_open = CHANGED not in selection.folded
        against = "the preset" if document.preset else "the defaults"
        purpose = "each is also in its section."
        rows.append(SectionRow(CHANGED, purpose, is_open, len(differs), 0, 0, f"changed from {against}"))
        rows += [row(fields[key], listed=True) for key in listed if is_open]
    found = {field.key for field in search(selection.query)}
    if not (selection.everything or selection.query):
        found &= {*_basic_keys(), *changes, *problems, *sent, *draft, keep}
    for section, purpose in sections().items():
        own = [field for key, field in fields.items() if key in found and key.startswith(f"{section}.")]
        if own:
            is_open = bool(selection.query) or section not in selection.folded
            changed = sum(field.key in differs for field in own)
            broken = sum(key.partition(".")[0] == section for key in problems)
            rows.append(SectionRow(section, purpose, is_open, changed, broken, len(own), section))
            rows += [row(field) for field in own if is_open]
    return rows


@cache
def _basic_keys() -> frozenset[str]:
    return frozenset(key for key, field in fields_by_key().items() if field.basic)


def keys_of(row: Row, document: ConfigDocument) -> list[str]:
    """Return the key of the setting of `row`, or those of the settings in its section."""
    if isinstance(row, FieldRow):
        return [row.key]
    if row.key == CHANGED:
        return [key for key, change in document.changes.items() if change.from_preset]
    return [key for key in fields_by_key() if key.startswith(f"{row.key}.")]


def row_action(row: Row) -> str:
    """Return what enter does to `row`, as a parameter of `ConfigRows.action_choose`."""
    if isinstance(row, SectionRow):
        return "fold" if row.is_open else "unfold"
    if row.locked:
        return "explain"
    if row.draft:
        return "send"
    if row.field.kind == "switch" and isinstance(row.value, bool):
        return "toggle"
    if not editable(row.field, row.value):
        return "toml"
    return "choose" if row.field.kind == "choice" else "edit"


def row_line(row: Row, width: int) -> Line:
    """Format `row` as pieces of at most `width` columns in total."""
    return _section_line(row, width) if isinstance(row, SectionRow) else _field_line(row, width)


def value_span(row: FieldRow, width: int) -> range:
    """Return the columns for the value of `row` on a line of `width` columns: after the name, right-aligned."""
    table = min(width, _TABLE)
    stop = table - _LIVE - (_UNIT if width >= _NARROW else 0)
    return range(min(_GUTTER + len(row.label) + 1, max(stop - 1, 0)), stop)


def _section_line(row: SectionRow, width: int) -> Line:
    head = f"{'▾' if row.is_open else '▸'} {row.title}"
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
    pieces.append((fit(row.label, span.start - _GUTTER), "locked" if row.locked else "name"))
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
    _action = ""  # of enter
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"config-rows--{role}" for role in _ROLES}
    BINDINGS: ClassVar[list[BindingType]] = [
        *cursor_bindings("config", "row"),
        Binding("enter", "choose('edit')", "edit", id="config.edit", tooltip="Edit the value"),
        Binding("enter", "choose('toggle')", "toggle", id="config.toggle", tooltip="Switch between true and false"),
        Binding("enter", "choose('choose')", "choose", id="config.choose", tooltip="Choose the value from a list"),
        Binding("enter", "choose('toml')", "edit TOML", id="config.edit-toml", tooltip="Edit the value in the TOML"),
        Binding("enter", "choose('send')", "send", id="config.send", tooltip="Send the proposed value to the run"),
        Binding("enter", "choose('explain')", "why locked", id="config.explain", tooltip="Say why the value is locked"),
        Binding("enter", "choose('fold')", "fold", id="config.fold-one", tooltip="Show only the section's heading"),
        Binding("enter", "choose('unfold')", "unfold", id="config.unfold", tooltip="Show the section's settings"),
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
            self._scroll_to_cursor()
        self._follow_action()

    def go_to(self, key: str) -> bool:
        """Move the cursor to the row of `key`; return False if there is none."""
        for place, row in enumerate(self._items):
            if row.spot == key:
                self.cursor = place
                return True
        return False

    def action_page(self, by: int) -> None:
        self.cursor += by * max(self.size.height - 1, 1)

    def watch_cursor(self, before: int, after: int) -> None:
        super().watch_cursor(before, after)
        self._follow_action()

    def _follow_action(self) -> None:
        """Update the footer if enter does something else now."""
        action = row_action(self.selected) if self.selected else ""
        if action != self._action:
            self._action = action
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "choose" or parameters == (self._action,)

    def action_choose(self, _: str) -> None:
        self.post_message(self.Chosen())

    def action_step(self, direction: int) -> None:
        self.post_message(self.Stepped(direction))

    def click_item(self, event: events.Click, *, again: bool) -> None:
        if again or event.x < 2:
            self.post_message(self.Chosen())

    def item_line(self, index: int, line: int, width: int) -> Line:
        pieces = row_line(self._items[index], width)
        return under_cursor(pieces, width) if index == self.cursor else pieces
