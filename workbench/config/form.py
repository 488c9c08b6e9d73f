"""Form of one configuration: its rows, the editors of a field, and what is known about the chosen one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.content import Content
from textual.geometry import Offset
from textual.message import Message
from textual.suggester import Suggester
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from workbench.config.fields import FormField, as_text, editable, parse
from workbench.config.rows import ConfigRows, FieldRow, Row, SectionRow, value_span
from workbench.kit.pane import MountedWhole
from workbench.text import visible


class FieldEditor(Input):
    """Input for the text of a setting: enter submits it, escape cancels."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "cancel", id="config-editor.cancel", tooltip="Leave the value as it was"),
        Binding("tab", "take_suggestion", "complete", id="config-editor.complete", tooltip="Take the suggested path"),
    ]

    class Cancelled(Message):
        """The user cancelled; the value stays as it was."""

    def __init__(self, field: FormField, text: str) -> None:
        suggester = PathSuggester() if field.kind == "path" else None
        super().__init__(text, compact=True, suggester=suggester, select_on_focus=field.kind in ("number", "integer"))
        self.field = field

    def action_leave(self) -> None:
        self.post_message(self.Cancelled())

    def action_take_suggestion(self) -> None:
        self.cursor_position = len(self.value)
        self.action_cursor_right()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "take_suggestion":
            return self.suggester is not None
        return True


class ChoiceList(OptionList):
    """List of choices: enter takes one, escape cancels."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "cancel", id="config-choices.cancel", tooltip="Leave the value as it was"),
    ]

    class Cancelled(Message):
        """The user cancelled; the value stays as it was."""

    def __init__(self, field: FormField, value: object) -> None:
        super().__init__(*(Option(Content(choice), id=choice) for choice in field.choices), compact=True)
        self.field = field
        if value in field.choices:
            self.highlighted = field.choices.index(str(value))

    def action_leave(self) -> None:
        self.post_message(self.Cancelled())


class PathSuggester(Suggester):
    """Suggester of the first file or folder that begins with the typed text."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        return completed(value)


def completed(text: str, listing: Callable[[Path], list[Path]] | None = None) -> str | None:
    """Complete `text` to the first existing path, folders with a slash; None if there is none."""
    if not text or "\0" in text:
        return None
    head, slash, tail = text.rpartition("/")
    try:
        folder = Path(head + slash).expanduser() if slash else Path()
        names = sorted(
            f"{path.name}/" if path.is_dir() else path.name
            for path in (listing or _listing)(folder)
            if path.name.startswith(tail) and path.name.isprintable() and (tail or not path.name.startswith("."))
        )
    except (OSError, RuntimeError):  # no such folder, or unknown home
        return None
    return f"{head}{slash}{names[0]}" if names else None


def _listing(folder: Path) -> list[Path]:
    return list(folder.iterdir())


_EDITOR = 24  # minimum columns for text, paths and lists


class ConfigForm(MountedWhole, Container):
    """Form that shows rows and requests changes by messages; it does not change the document."""

    class ValueChosen(Message):
        """Request to set `key` to `value`, which satisfies the setting's own rule."""

        def __init__(self, key: str, value: Any) -> None:
            super().__init__()
            self.key = key
            self.value = value

    class StepRequested(Message):
        """Request to step the value of `key` up (direction 1) or down (-1), with wrap-around."""

        def __init__(self, key: str, direction: int) -> None:
            super().__init__()
            self.key = key
            self.direction = direction

    class FoldRequested(Message):
        """Request to unfold the section, or to fold it."""

        def __init__(self, section: str, is_open: bool) -> None:
            super().__init__()
            self.section = section
            self.is_open = is_open

    class TextRequested(Message):
        """Request to show the TOML of a setting that cannot be edited on one line."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    class DraftChosen(Message):
        """Request to send the proposed value to the run."""

    class LockedChosen(Message):
        """The user tried to change a setting that is locked for now."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._editor: FieldEditor | ChoiceList | None = None

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

    def say(self, text: str) -> None:
        """Show a note under the cursor's row until the cursor moves; an empty text removes it."""
        note = self.query_one("#config-note", Static)
        note.update(Content(visible(text)))
        note.display = bool(text)
        self._place()

    def close(self) -> None:
        """Close the editor and the note; the value stays as it was."""
        self.say("")
        if self._editor is not None:
            had_focus = self._editor.has_focus
            self._editor.remove()
            self._editor = None
            if had_focus:
                self.rows.focus()

    @on(ConfigRows.Chosen)
    def _choose(self) -> None:
        row = self.rows.selected
        if isinstance(row, SectionRow):
            self.post_message(self.FoldRequested(row.name, not row.is_open))
        elif isinstance(row, FieldRow):
            self._edit(row)

    @on(ConfigRows.Stepped)
    def _step(self, event: ConfigRows.Stepped) -> None:
        row = self.rows.selected
        if isinstance(row, SectionRow):
            self.post_message(self.FoldRequested(row.name, event.direction > 0))
        elif isinstance(row, FieldRow):
            self._request_step(row, event.direction)

    @on(ConfigRows.Moved)
    def _close_note(self) -> None:
        self.close()

    def on_resize(self) -> None:
        self._place()

    @on(Input.Submitted)
    def _submit(self, event: Input.Submitted) -> None:
        event.stop()
        assert isinstance(event.input, FieldEditor)
        field = event.input.field
        if isinstance(row := self.rows.selected, FieldRow) and row.locked:  # a run has begun meanwhile
            self.post_message(self.LockedChosen(row.key))
            return
        try:
            value = parse(field, event.value)
        except ValueError as error:
            self.say(f"✖ {field.name} {error}")
        else:
            self._take(field, value)

    @on(OptionList.OptionSelected)
    def _select(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        assert isinstance(event.option_list, ChoiceList)
        if isinstance(row := self.rows.selected, FieldRow) and row.locked:
            self.post_message(self.LockedChosen(row.key))
            return
        self._take(event.option_list.field, event.option_id)

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self.say("")

    @on(FieldEditor.Cancelled)
    @on(ChoiceList.Cancelled)
    def _cancel(self) -> None:
        self.close()

    def _edit(self, row: FieldRow) -> None:
        field = row.field
        if row.locked:
            self.post_message(self.LockedChosen(row.key))
        elif row.draft:
            self.post_message(self.DraftChosen())
        elif field.kind == "switch" and isinstance(row.value, bool):
            self._request_step(row, 1)
        elif not editable(field, row.value):
            self.post_message(self.TextRequested(row.key))
        else:
            self.close()
            if field.kind == "choice":
                self._editor = ChoiceList(field, row.value)
            else:
                self._editor = FieldEditor(field, as_text(field, row.value))
            self.mount(self._editor)
            self._place()
            self._editor.focus()

    def _request_step(self, row: FieldRow, direction: int) -> None:
        self.post_message(self.LockedChosen(row.key) if row.locked else self.StepRequested(row.key, direction))

    def _take(self, field: FormField, value: Any) -> None:
        self.close()
        self.post_message(self.ValueChosen(field.key, value))

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
