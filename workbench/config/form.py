"""Form of one configuration: its rows, the editor of a value, and the changes that keys make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.content import Content
from textual.events import Resize
from textual.geometry import Offset
from textual.message import Message
from textual.widgets import Input

from trainer.config.reference import Setting
from trainer.errors import TrainerError, counted
from trainer.events import SettingChanged
from workbench.config.document import ConfigDocument
from workbench.config.fields import (
    as_text,
    editable,
    fields_by_key,
    kind_of,
    limits,
    parse,
    sections,
    stepped,
    toml_line,
)
from workbench.config.rows import ConfigRows, FieldRow, SectionRow, View, help_content, rows_of, value_span
from workbench.kit.dialog import AnswerScreen, Reply
from workbench.kit.drawing import CutText
from workbench.kit.keys import bind, hidden_key, with_keys
from workbench.kit.pane import MountedWhole
from workbench.kit.saving import PathSuggester
from workbench.text import visible

_NUMBERS = ("number", "integer")
_EDITOR = 24  # minimum columns for text, paths and lists
NEXT: dict[View, View] = {"basic": "all", "all": "changed", "changed": "basic"}
"""View that the key shows next."""


class FieldEditor(Input):
    """Input for the text of a setting: enter submits it, escape cancels. leave: called when the user leaves it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("enter", "submit", "set", "config-editor.submit", "Set the typed value"),
        bind("escape", "leave", "cancel", "config-editor.cancel", "Leave the value as it was"),
        bind("tab", "cursor_right", "complete", "config-editor.complete", "Take the suggested path"),
    ]

    def __init__(self, field: Setting, value: Any, leave: Callable[[], None]) -> None:
        kind = kind_of(field)
        super().__init__(
            as_text(field, value),
            compact=True,
            suggester=PathSuggester() if kind == "path" else None,
            select_on_focus=kind in _NUMBERS,
        )
        self.field, self._leave = field, leave

    def action_leave(self) -> None:
        self._leave()

    def on_blur(self) -> None:
        if self.app.app_focus:  # not when the user looks something up in another window
            self._leave()


class ConfigForm(MountedWhole, Container):
    """Rows of a document, an editor over them, and the keys that change it.

    During a run only live settings can change: keys that would change one open the editor, and enter sends the value
    to the run. help: shows the help on the row under the cursor, and notes. edit_toml: edits that setting as TOML.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("enter", "choose", "edit", "config.edit", "Edit or switch the value; fold a section"),
        hidden_key("right,plus", "step(1)", "more", "config.more", "Raise the value, or unfold"),
        hidden_key("left,minus", "step(-1)", "less", "config.less", "Lower the value, or fold"),
        bind("v", "view", "view", "config.view", "Change the view: basic settings, all, or the changed ones"),
        hidden_key("y", "copy", "copy", "config.copy", "Copy the setting or section as TOML"),
        hidden_key("backspace", "reset", "reset", "config.reset", "Restore the preset's value"),
        hidden_key("f", "fold_all", "fold", "config.fold", "Fold or unfold all sections"),
    ]

    @dataclass
    class Changed(Message):
        """The document has changed, or only what is shown of it."""

        document: bool

    @dataclass
    class LiveSettingChanged(Message):
        """Request that the current run uses `value` for `key`."""

        key: str
        value: Any

    view: View = "basic"
    """View that the user has chosen: the basic settings, all of them, or those that differ."""
    shown = 0
    """Number of settings in the view."""
    words = ""
    """Words that the settings are searched for."""
    running = False
    """True while a run is active."""
    note = ""
    """Text above the help: a problem, or what a key would do."""
    _editor: FieldEditor | None = None

    def __init__(self, document: ConfigDocument, help: CutText, edit_toml: Callable[[], None]) -> None:
        super().__init__(id="config-form")
        self.rows = ConfigRows()
        """Widget that draws the rows."""
        self._help, self._edit_toml = help, edit_toml
        self._folded: set[str] = set()
        self.edit_document(document)

    def edit_document(self, document: ConfigDocument) -> None:
        """Edit `document`, without what was sent for another document or run."""
        self.document = document
        self._sent: set[str] = set()  # to the run, which has not confirmed them
        self._newest: SettingChanged | None = None  # of the run's changes that the document includes
        if self._editor is None:
            self.note = ""

    def compose(self) -> ComposeResult:
        yield self.rows

    def on_mount(self) -> None:
        self.watch(self.rows, "scroll_y", self._place, init=False)

    def show(self, *, keep: str = "") -> None:
        """Show the document as it is now. keep: a setting to show in any case, else that of the cursor."""
        row = self.rows.selected
        rows = rows_of(
            self.document,
            self.view,
            query=self.words,
            folded=self._folded,
            keep=keep or (row.key if row else ""),
            running=self.running,
            sent=self._sent,
        )
        self.rows.show(rows, "  No matching settings" if self.words else "  No changed settings")
        self._place()
        self.say(self.note)
        self.shown = sum(row.shown for row in rows if isinstance(row, SectionRow))

    def go_to(self, key: str) -> None:
        """Move the cursor to a setting, also if it is hidden or its section is folded."""
        if not self.rows.go_to(key):
            self._folded.discard(key.partition(".")[0])
            self.show(keep=key)
            self.rows.go_to(key)
            self.post_message(self.Changed(document=False))

    def say(self, note: str) -> None:
        """Show a note, which is safe to print, above the help until the cursor moves or the document changes."""
        self.note = note
        style = "$text-error" if note.startswith("✖") else "" if note.startswith("allowed") else "$text-warning"
        help_text = help_content(self.rows.selected)
        # Its height is fixed, so that the form stays where it is.
        self._help.update(Content.styled(f"{note}\n" * bool(note), style) + help_text, layout=False)

    # The editor of a value

    def _edit(self, field: Setting, value: Any) -> None:
        self.close()
        self._editor = FieldEditor(field, value, self.close)
        self.mount(self._editor)
        self._place()
        self._editor.focus()

    @on(ConfigRows.Moved)
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
    @on(Input.Changed)
    def _typed(self, event: Input.Submitted | Input.Changed) -> None:
        """Show the rule that the typed text breaks, or else which values are allowed; set a submitted value."""
        event.stop()
        if self._editor is None:
            return
        field = self._editor.field
        try:
            value = parse(field, event.value)
        except ValueError as error:
            self.say(visible(f"✖ {field.name} {error}"))
            return
        if isinstance(event, Input.Submitted):
            self.close()
            self._set(field.key, value)
        else:
            sends = "{config-editor.submit} sends it to the run, {config-editor.cancel} discards it · "
            allowed = f"allowed: {limits(field)}" if limits(field) else ""
            self.say((with_keys(sends, self._editor) if self.running else "") + visible(allowed))

    @on(Resize)
    def _place(self) -> None:
        """Place the editor over the value."""
        rows, editor = self.rows, self._editor
        if editor is not None and isinstance(rows.selected, FieldRow):
            span = value_span(rows.selected, rows.scrollable_content_region.width)
            start = max(min(span.start, span.stop - (8 if kind_of(editor.field) in _NUMBERS else _EDITOR)), 0)
            editor.styles.width = max(span.stop - start, 1)
            editor.styles.offset = Offset(start, rows.line)
            editor.display = 0 <= rows.line < rows.size.height

    # Keys

    @on(ConfigRows.Opened)
    def action_choose(self) -> None:
        """Edit or switch the value under the cursor, or fold the section."""
        row = self.rows.selected
        if isinstance(row, SectionRow):
            self._fold(row, is_open=not row.is_open)
        elif row is None or self._explains_lock(row.key):
            return
        elif kind_of(row.field) == "boolean" and isinstance(value := self.document.get(row.key), bool):
            self._set(row.key, not value)
        elif not editable(row.field, row.value):
            self._edit_toml()
        elif kind_of(row.field) == "choice":
            choices = [Reply(one, one, "current" if one == row.value else "") for one in row.field.schema["enum"]]
            self.app.push_screen(AnswerScreen(row.key, choices), partial(self._set, row.key))
        else:
            self._edit(row.field, row.value)

    def action_step(self, direction: int) -> None:
        """Step the value under the cursor up (direction 1) or down (-1), or unfold or fold the section."""
        row = self.rows.selected
        if isinstance(row, SectionRow):
            self._fold(row, is_open=direction > 0)
        elif row is not None:
            value = stepped(row.field, self.document.get(row.key), direction)  # the row may show the step before
            self._change(row, value, partial(self.document.set, row.key, value))

    def action_reset(self) -> None:
        """Reset the setting under the cursor to the preset's value."""
        row = self.rows.selected
        if isinstance(row, FieldRow) and self.rows.has_focus:
            self._change(row, self.document.preset_value(row.key), partial(self.document.reset, row.key))

    def _fold(self, row: SectionRow, *, is_open: bool) -> None:
        (self._folded.discard if is_open else self._folded.add)(row.key)
        self.show()

    def action_fold_all(self) -> None:
        """Fold all sections, or unfold all if any is folded."""
        self._folded = set() if self._folded else {*sections()}
        self.show()

    def action_view(self) -> None:
        """Show the basic settings, all, or those that differ from the preset."""
        self.view = NEXT[self.view]
        self.post_message(self.Changed(document=False))

    def action_copy(self) -> None:
        """Copy the setting under the cursor as TOML, or those of the section."""
        if row := self.rows.selected:
            keys = [key for key in fields_by_key() if key == row.key or key.startswith(f"{row.key}.")]
            text = "\n".join(toml_line(key, self.document.get(key)) for key in keys)
            self.copy(text, row.key if isinstance(row, FieldRow) else counted(len(keys), "setting"))

    # Changes of the document

    def follow(self, settings: Sequence[SettingChanged]) -> None:
        """Copy what the active run has set since the last call, which is no longer unconfirmed.

        settings: the newest changes of the run, in order.
        """
        newest = settings[-1] if settings else None
        if not self.running or newest is self._newest:
            return
        seen = next((place for place, setting in enumerate(settings) if setting is self._newest), -1)
        new = [setting for setting in settings[seen + 1 :] if setting.key in fields_by_key()]
        self._newest = newest
        self._sent -= {setting.key for setting in new}
        try:
            for setting in new:
                self.document.set(setting.key, setting.value)
        except TrainerError as error:
            self.say(visible(str(error)))
        self.post_message(self.Changed(document=False))

    def make(self, change: Callable[[], object]) -> bool:
        """Change the document; return whether it is another now."""
        before = self.document.text
        try:
            change()
        except TrainerError as error:
            self.say(visible(str(error)))
        if self.document.text == before:
            return False
        if self._editor is None:
            self.note = ""  # it was about the text before
        self.post_message(self.Changed(document=True))
        return True

    def _set(self, key: str, value: Any) -> None:
        """Set a value that the user has entered, also for the run; None for nothing."""
        if value is None or self._explains_lock(key):
            return
        if self.make(partial(self.document.set, key, value)) and self.running:
            self._sent.add(key)
            self.post_message(self.LiveSettingChanged(key, value))

    def _change(self, row: FieldRow, value: Any, change: Callable[[], object]) -> None:
        """Change the value of `row`; during a run, offer it in the editor."""
        if self._explains_lock(row.key):
            return
        if not self.running:
            self.make(change)
        elif editable(row.field, value):
            self._edit(row.field, value)
        else:
            self._set(row.key, value)

    def _explains_lock(self, key: str) -> bool:
        """Return whether a setting cannot change now, and say why."""
        if self.document.syntax_error:
            self.say(with_keys("the TOML has an error: fix it there first ({config.toml})", *self.ancestors))
        elif self.running and not fields_by_key()[key].live:
            self.say(f"{key} cannot change during a run: only settings marked live can")
        else:
            return False
        return True
