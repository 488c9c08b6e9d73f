"""Form of one configuration: its rows, and the editor of a setting with a note over them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.content import Content
from textual.geometry import Offset
from textual.message import Message
from textual.suggester import Suggester
from textual.widgets import Input, Static

from trainer.config.reference import Setting
from workbench.config.fields import as_text, default_of, kind_of, limits, parse, shown
from workbench.config.rows import ConfigRows, FieldRow, Row, SectionRow, value_span
from workbench.kit.drawing import CutText
from workbench.kit.keys import with_keys
from workbench.kit.pane import MountedWhole
from workbench.text import visible

_NUMBERS = ("number", "integer")
_EDITOR = 24  # minimum columns for text, paths and lists


class FieldEditor(Input):
    """Input for the text of a setting: enter submits it, escape cancels."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "set", id="config-editor.submit", tooltip="Set the typed value"),
        Binding("escape", "leave", "cancel", id="config-editor.cancel", tooltip="Leave the value as it was"),
        Binding("tab", "take_suggestion", "complete", id="config-editor.complete", tooltip="Take the suggested path"),
    ]

    class Cancelled(Message):
        """The user left the editor; the value stays as it was."""

    def __init__(self, field: Setting, value: Any) -> None:
        kind = kind_of(field)
        super().__init__(
            as_text(field, value),
            compact=True,
            suggester=PathSuggester() if kind == "path" else None,
            select_on_focus=kind in _NUMBERS,
        )
        self.field = field

    def action_leave(self) -> None:
        self.post_message(self.Cancelled())

    @work(exclusive=True, group="completion")
    async def action_take_suggestion(self) -> None:
        typed = self.value
        path = await asyncio.to_thread(completed, typed)  # the suggestion on the screen may still be on its way
        if path is not None and self.value == typed:
            self.value = path
            self.action_end()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "take_suggestion" or self.suggester is not None


class PathSuggester(Suggester):
    """Suggester of the first file or folder that begins with the typed text."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        return await asyncio.to_thread(completed, value)  # a folder may hold many files, or be far away


def completed(text: str) -> str | None:
    """Complete `text` to the first existing path, folders with a slash; None if there is none."""
    if not text or "\0" in text:
        return None
    head, slash, tail = text.rpartition("/")
    try:
        folder = Path(head + slash).expanduser() if slash else Path()
        names = sorted(
            f"{path.name}/" if path.is_dir() else path.name
            for path in folder.iterdir()
            if path.name.startswith(tail) and path.name.isprintable() and (tail or not path.name.startswith("."))
        )
    except (OSError, RuntimeError):  # no such folder, or unknown home
        return None
    return f"{head}{slash}{names[0]}" if names else None


class ConfigForm(MountedWhole, Container):
    """Rows with an editor and a note over them; it does not change the document."""

    class ValueChosen(Message):
        """Request to set `key` to `value`, which satisfies the setting's own rule."""

        def __init__(self, key: str, value: Any) -> None:
            super().__init__()
            self.key = key
            self.value = value

    _editor: FieldEditor | None = None

    def compose(self) -> ComposeResult:
        yield ConfigRows()
        yield Static(id="config-note", markup=False)

    def on_mount(self) -> None:
        self.watch(self.rows, "scroll_y", self._place, init=False)

    def on_resize(self) -> None:
        self._place()

    @property
    def rows(self) -> ConfigRows:
        """Widget that draws the rows."""
        return self.query_one(ConfigRows)

    def show(self, rows: Sequence[Row]) -> None:
        """Show new rows, or the same ones with their current values."""
        self.rows.show(rows)
        self._place()

    def say(self, text: str, *, is_hint: bool = False) -> None:
        """Show a note under the cursor's row until the cursor moves; an empty text removes it.

        A key is given by the id of its binding in braces. is_hint: nothing is wrong.
        """
        note = self.query_one("#config-note", Static)
        safe = visible(text)
        note.update(Content(with_keys(safe, self.rows, *self.ancestors) if "{" in safe else safe))
        note.display = bool(text)
        note.set_class(is_hint, "-hint")
        self._place()

    def edit(self, row: FieldRow) -> None:
        """Open the editor of the setting under the cursor."""
        self.close()
        self._editor = FieldEditor(row.field, row.value)
        self.mount(self._editor)
        self._judge(self._editor.value)
        self._editor.focus()

    @on(ConfigRows.Moved)
    @on(FieldEditor.Cancelled)
    def close(self) -> None:
        """Close the editor and the note; the value stays as it was."""
        self.say("")
        if self._editor is not None:
            had_focus = self._editor.has_focus
            self._editor.remove()
            self._editor = None
            if had_focus:
                self.rows.focus()

    @on(Input.Submitted)
    def _submit(self, event: Input.Submitted) -> None:
        event.stop()
        if self._editor is not None and self._judge(event.value):
            field = self._editor.field
            self.close()
            self.post_message(self.ValueChosen(field.key, parse(field, event.value)))

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self._judge(event.value)

    def _judge(self, text: str) -> bool:
        """Say which rule the typed text breaks, or else which values are allowed; return whether it breaks none."""
        if self._editor is None:
            return False
        field = self._editor.field
        try:
            parse(field, text)
        except ValueError as error:
            self.say(f"✖ {field.name} {error}")
            return False
        self.say(limits(field), is_hint=True)
        return True

    def _place(self) -> None:
        """Place the editor over the value, and the note under the row, or above it if there is no room below."""
        rows, note, editor = self.rows, self.query_one("#config-note", Static), self._editor
        width, height, line = rows.scrollable_content_region.width, rows.size.height, rows.line
        note.styles.width = max(width - 1, 1)
        lines = len(Content(str(note.content)).wrap(max(width - 3, 1))) if note.display else 0
        note.styles.offset = Offset(1, line + 1 if line + 1 + lines <= height else max(line - lines, 0))
        if editor is not None and isinstance(rows.selected, FieldRow):
            span = value_span(rows.selected, width)
            least = 8 if kind_of(editor.field) in _NUMBERS else _EDITOR
            start = max(min(span.start, span.stop - least), 0)
            editor.styles.width = max(span.stop - start, 1)
            editor.styles.offset = Offset(start, line)
            editor.display = 0 <= line < height


class FieldHelp(CutText):
    """Help on a row, the most important facts first; its height is fixed, so that the form does not jump."""

    def show(self, row: Row | None) -> None:
        """Explain `row`."""
        self.update(help_content(row), layout=False)


def help_content(row: Row | None) -> Content:
    """Return the help on `row`: its purpose, advice, range, default, and the default's source."""
    if row is None:
        return Content()
    if isinstance(row, SectionRow):
        return Content.assemble((row.title, "bold"), "  ", row.purpose)
    field = row.field
    lines = [Content.assemble((f"{field.name}  ", "bold"), field.help)]
    if field.advice:
        lines.append(Content.styled(field.advice, "$text-accent"))
    default = f"default {visible(shown(field, default_of(field)))}"
    facts = filter(None, (limits(field), default, "live" if field.live else ""))
    lines.append(Content.styled(" · ".join(facts), "$text-muted"))
    if field.source:
        lines.append(Content.styled(f"default from: {field.source}", "$text-muted"))
    return Content("\n").join(lines)
