"""Rows of the form: sections and settings with their state, as text, and the list that shows them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from rich.cells import cell_len
from textual import events
from textual.binding import BindingType
from textual.content import Content

from trainer.config.reference import Setting
from workbench.config.document import ConfigDocument
from workbench.config.fields import BASIC, fields_by_key, limits, search, sections, shown
from workbench.kit.cursor_list import CursorList, cursor_bindings, under_cursor
from workbench.text import Line, fit, fit_start, padded, visible

View = Literal["basic", "all", "changed"]
"""Settings that the form shows: the basic ones and what matters now, all, or those that differ from the preset."""

_GUTTER = 3  # a mark for a problem or change, one for unsaved, and a space
_LIVE = 5
_UNIT = 14
_NARROW = 56  # columns; a narrower line has no room for units
_TABLE = 68  # most columns of a row: further apart, name and value are hard to match
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
    shown: int
    """Number of its settings in this view, folded or not."""


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

    @property
    def key(self) -> str:
        return self.field.key


Row = SectionRow | FieldRow


def rows_of(
    document: ConfigDocument,
    view: View = "basic",
    *,
    query: str = "",
    folded: Collection[str] = (),
    keep: str = "",
    running: bool = False,
    sent: Collection[str] = (),
) -> list[Row]:
    """Return the rows of the form: sections and their settings.

    query: words that all settings are searched for. folded: sections that show only their headings. keep: key of a
    setting that is shown in any case. sent: settings that were sent to a run and are not confirmed yet.
    """
    changes = document.changes
    problems = {problem.setting: problem.message for problem in reversed(document.problems)}
    differs = {key for key, change in changes.items() if change.from_preset}
    found = {field.key for field in search(query)}
    if not query and view != "all":
        found &= {*sent, keep} | (differs if view == "changed" else {*BASIC, *changes, *problems})
    rows: list[Row] = []
    for section, purpose in sections().items():
        own = [key for key in fields_by_key() if key in found and key.startswith(f"{section}.")]
        if own:
            is_open = bool(query) or section not in folded
            broken = sum(key.partition(".")[0] == section for key in problems)
            rows.append(SectionRow(section, purpose.rstrip("."), is_open, len(differs & {*own}), broken, len(own)))
        for key in own if own and is_open else ():
            field, change = fields_by_key()[key], changes.get(key)
            row = FieldRow(
                field=field,
                value=document.get(key),
                was=shown(field, change.preset) if change and change.from_preset else "",
                unsaved=bool(change and change.unsaved),
                problem=problems.get(key, ""),
                locked=bool(document.syntax_error) or (running and not field.live),
                sent=key in sent,
            )
            rows.append(row)
    return rows


def value_span(row: FieldRow, width: int) -> range:
    """Return the columns for the value of `row` on a line of `width` columns: after the name, right-aligned."""
    stop = min(width, _TABLE) - _LIVE - (_UNIT if width >= _NARROW else 0)
    return range(min(_GUTTER + len(row.field.name) + 1, max(stop - 1, 0)), stop)


def row_line(row: Row, width: int) -> Line:
    """Format `row` as pieces of at most `width` columns in total."""
    if isinstance(row, SectionRow):
        head = f"{'▾' if row.is_open else '▸'} {row.key}"
        counts: Line = [(f"✖ {row.problems} ", "problem")] if row.problems else []
        if row.changed and not row.is_open:
            counts.append((f"• {row.changed} changed ", "mark"))
        room = min(width, _TABLE) - cell_len(head) - sum(cell_len(text) for text, _ in counts)
        purpose = f"  {row.purpose}" if cell_len(row.purpose) + 2 <= room else ""
        return [(head, "section"), (fit(purpose, max(room, 0)), "muted"), *counts]
    field, span = row.field, value_span(row, width)
    role = "muted" if row.value in ("", []) else "value"
    if row.problem or row.locked or row.was:
        role = "problem" if row.problem else "locked" if row.locked else "changed"
    value = fit(visible(shown(field, row.value)).strip(), span.stop - span.start, right=True)
    bare = value.lstrip(" ")
    room = cell_len(value) - cell_len(bare)
    was = visible(f"was {row.was}  ") if row.was else ""
    pieces: Line = [
        ("✖", "problem") if row.problem else ("•", "mark") if row.was else (" ", "name"),
        ("*" if row.unsaved else " ", "mark"),
        (" ", "name"),
        (fit(field.name, span.start - _GUTTER), "locked" if row.locked else "name"),
        (padded(was if cell_len(was) <= room else "", room, right=True), "muted"),
        (bare, role),
    ]
    if width >= _NARROW:
        pieces.append((fit(f" {field.unit}", _UNIT), "muted"))
    pieces.append((fit(" sent" if row.sent else " live" if field.live else "", _LIVE), "live"))
    if width >= _TABLE + _HELP:
        pieces.append((fit(f"  {fit_start(field.help, width - _TABLE - 2)}", width - _TABLE), "muted"))
    return pieces


def help_content(row: Row | None) -> Content:
    """Return the help on `row`: its purpose, advice, range, default and its source; the settings of a section."""
    if row is None:
        return Content()
    if isinstance(row, SectionRow):
        names = ", ".join(key.partition(".")[2] for key in fields_by_key() if key.startswith(f"{row.key}."))
        return Content.assemble((row.key, "bold"), f"  {row.purpose}\n", (f"settings: {names}", "$text-muted"))
    field = row.field
    lines = [Content.assemble((f"{field.name}  ", "bold"), field.help)]
    if field.advice:
        lines.append(Content.styled(field.advice, "italic"))
    default = f"default {visible(shown(field, field.schema['default']))}"
    facts = filter(None, (limits(field), default, "live" if field.live else ""))
    lines.append(Content.styled(" · ".join(facts), "$text-muted"))
    if field.source:
        lines.append(Content.styled(f"default from: {field.source}", "$text-muted"))
    return Content("\n").join(lines)


class ConfigRows(CursorList[Row]):
    """List of sections and settings with a cursor."""

    CSS_NAME = "config-rows"
    MARGIN = 2
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"config-rows--{role}" for role in _ROLES}
    BINDINGS: ClassVar[list[BindingType]] = cursor_bindings("config", "row")

    @property
    def line(self) -> int:
        """Line of this widget with the cursor, from 0."""
        return self.cursor - self.scroll_offset.y

    def show(self, rows: Sequence[Row], if_empty: str) -> None:
        """Show other rows, or a message; the cursor stays on its row and in its line, or near its place."""
        before, line, row = self.cursor, self.line, self.selected
        places = {shown.key: place for place, shown in enumerate(rows)}
        self.items, self._message = rows, if_empty
        place = before
        if row is not None:
            place = places.get(row.key, places.get(row.key.partition(".")[0], before))
        self.put_cursor(place)
        if row is not None and place != before:
            self.scroll_to(y=place - line, animate=False, force=True)
            self.put_cursor(place)  # in view

    def go_to(self, key: str) -> bool:
        """Move the cursor to the row of `key`; return False if there is none."""
        place = next((place for place, row in enumerate(self.items) if row.key == key), None)
        if place is not None:
            self.cursor = place
        return place is not None

    def click_item(self, event: events.Click, *, again: bool) -> None:
        if again or event.x < 2:
            self.post_message(self.Opened())

    def item_line(self, index: int, line: int, width: int) -> Line:
        pieces = row_line(self.items[index], width)
        return under_cursor(pieces, width) if index == self.cursor else pieces
