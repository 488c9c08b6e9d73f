"""Form of one configuration: its rows, and the editors of a setting."""

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
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from workbench.config.fields import FormField, as_text, limits, parse
from workbench.config.rows import ConfigRows, FieldRow, Row, value_span
from workbench.kit.keys import with_keys
from workbench.kit.pane import MountedWhole
from workbench.text import visible


class Cancelled(Message):
    """The user left an editor; the value stays as it was."""


class FieldEditor(Input):
    """Input for the text of a setting: enter submits it, escape cancels."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "set", id="config-editor.submit", tooltip="Set the typed value"),
        Binding("escape", "leave", "cancel", id="config-editor.cancel", tooltip="Leave the value as it was"),
        Binding("tab", "take_suggestion", "complete", id="config-editor.complete", tooltip="Take the suggested path"),
    ]

    def __init__(self, field: FormField, value: Any) -> None:
        super().__init__(
            as_text(field, value),
            compact=True,
            suggester=PathSuggester() if field.kind == "path" else None,
            select_on_focus=field.kind in ("number", "integer"),
        )
        self.field = field

    def action_leave(self) -> None:
        self.post_message(Cancelled())

    @work(exclusive=True, group="completion")
    async def action_take_suggestion(self) -> None:
        typed = self.value
        path = await asyncio.to_thread(completed, typed)  # the suggestion on the screen may still be on its way
        if path is not None and self.value == typed:
            self.value = path
            self.action_end()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "take_suggestion" or self.suggester is not None


class ChoiceList(OptionList):
    """List of choices: enter takes one, escape cancels."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select", "take", id="config-choices.take", tooltip="Take this value"),
        Binding("escape", "leave", "cancel", id="config-choices.cancel", tooltip="Leave the value as it was"),
    ]

    def __init__(self, field: FormField, value: object) -> None:
        super().__init__(*(Option(Content(choice), id=choice) for choice in field.choices), compact=True)
        self.field = field
        if value in field.choices:
            self.highlighted = field.choices.index(str(value))

    def action_leave(self) -> None:
        self.post_message(Cancelled())


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


def path_kind(text: str) -> str:
    """Return whether `text` is the path of a file or a folder, in words; empty if nothing is there."""
    try:
        path = Path(text).expanduser()
        return "a folder" if path.is_dir() else "a file" if path.exists() else ""
    except (OSError, RuntimeError, ValueError):
        return ""


_NAMES = {"model.path", "data.prompts"}  # what is no path is a name
_EDITOR = 24  # minimum columns for text, paths and lists


class ConfigForm(MountedWhole, Container):
    """Rows with an editor and a note over them; it does not change the document."""

    class ValueChosen(Message):
        """Request to set `key` to `value`, which satisfies the setting's own rule."""

        def __init__(self, key: str, value: Any) -> None:
            super().__init__()
            self.key = key
            self.value = value

    class LockedChosen(Message):
        """A value was entered for the setting under the cursor after a run had locked it."""

    _editor: FieldEditor | ChoiceList | None = None

    def compose(self) -> ComposeResult:
        yield ConfigRows()
        yield Static(id="config-note", markup=False)

    def on_mount(self) -> None:
        self.watch(self.rows, "scroll_y", self._place, init=False)

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
        shown = visible(text)
        note.update(Content(with_keys(shown, self.rows, *self.ancestors) if "{" in shown else shown))
        note.display = bool(text)
        note.set_class(is_hint, "-hint")
        self._place()

    def edit(self, row: FieldRow) -> None:
        """Open the editor of the setting under the cursor."""
        self.close()
        editor: type[FieldEditor | ChoiceList] = ChoiceList if row.field.kind == "choice" else FieldEditor
        self._editor = editor(row.field, row.value)
        self.mount(self._editor)
        self._comment()
        self._place()
        self._editor.focus()

    @on(ConfigRows.Moved)
    @on(Cancelled)
    def close(self) -> None:
        """Close the editor and the note; the value stays as it was."""
        self.say("")
        if self._editor is not None:
            had_focus = self._editor.has_focus
            self._editor.remove()
            self._editor = None
            if had_focus:
                self.rows.focus()

    def on_resize(self) -> None:
        self._place()

    @on(Input.Submitted)
    @on(OptionList.OptionSelected)
    def _submit(self, event: Input.Submitted | OptionList.OptionSelected) -> None:
        event.stop()
        editor, row = event.control, self.rows.selected
        assert isinstance(editor, FieldEditor | ChoiceList)
        if isinstance(row, FieldRow) and row.locked:
            self.post_message(self.LockedChosen())
            return
        try:
            value = parse(editor.field, event.value if isinstance(event, Input.Submitted) else str(event.option_id))
        except ValueError as error:
            self.say(f"✖ {editor.field.name} {error}")
        else:
            self.close()
            self.post_message(self.ValueChosen(editor.field.key, value))

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self._comment()

    def _comment(self) -> None:
        """Say which rule the typed value breaks, or else which values are allowed."""
        editor = self._editor
        if not isinstance(editor, FieldEditor):
            return
        try:
            parse(editor.field, editor.value)
        except ValueError as error:
            self.say(f"✖ {editor.field.name} {error}")
        else:
            self.say(limits(editor.field), is_hint=True)
            if editor.field.kind == "path" and editor.value.strip():
                self._look_up(editor)

    @work(exclusive=True, group="existence")
    async def _look_up(self, editor: FieldEditor) -> None:
        """Say what is at the typed path, as the file system may be slow."""
        typed = editor.value
        found = await asyncio.to_thread(path_kind, typed.strip())
        if editor is self._editor and editor.value == typed:
            nothing = "not there: read as a name" if editor.field.key in _NAMES else "not there yet"
            self.say(f"{limits(editor.field)} · {found or nothing}".removeprefix(" · "), is_hint=True)

    def _place(self) -> None:
        """Place the editor over the value, and the note under the row, or above it if there is no room below."""
        rows = self.rows
        width, height, line = rows.scrollable_content_region.width, rows.size.height, rows.line
        note = self.query_one("#config-note", Static)
        note.styles.width = max(width - 1, 1)
        below = 1 + (len(self._editor.options) if isinstance(self._editor, ChoiceList) else 0)
        lines = Content(str(note.content)).wrap(max(width - 3, 1)) if note.display else []
        note.styles.offset = Offset(
            1, line + below if line + below + len(lines) <= height else max(line - len(lines), 0)
        )
        if self._editor is None or not isinstance(rows.selected, FieldRow):
            return
        span = value_span(rows.selected, width)
        if isinstance(self._editor, ChoiceList):
            taken = len(self._editor.options)
            self._editor.styles.width = longest = max(len(choice) for choice in self._editor.field.choices) + 4
            self._editor.styles.height = min(taken, max(height, 1))
            over = line + 1 + taken > height
            self._editor.styles.offset = Offset(
                max(span.stop - longest + 1, 0), max(line - taken, 0) if over else line + 1
            )
        else:
            least = 8 if self._editor.field.kind in ("number", "integer") else _EDITOR
            start = max(min(span.start, span.stop - least), 0)
            self._editor.styles.width = max(span.stop - start, 1)
            self._editor.styles.offset = Offset(start, line)
        self._editor.display = 0 <= line < height
