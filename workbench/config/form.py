"""Form of one configuration: its rows, the editor of a value, and the changes that keys make."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.geometry import Offset
from textual.message import Message
from textual.suggester import Suggester
from textual.widgets import Input

from trainer.config.reference import Setting
from trainer.errors import TrainerError
from trainer.events import SettingChanged
from trainer.plurals import counted
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
from workbench.config.rows import ConfigRows, FieldRow, SectionRow, View, rows_of, value_span
from workbench.config.views import FieldHelp
from workbench.kit.dialog import AnswerScreen, Reply
from workbench.kit.keys import with_keys
from workbench.kit.pane import MountedWhole
from workbench.text import visible

_NUMBERS = ("number", "integer")
_EDITOR = 24  # minimum columns for text, paths and lists
_NEXT: dict[View, View] = {"basic": "all", "all": "changed", "changed": "basic"}


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


class Proposal(NamedTuple):
    """Value of a live setting that the run gets once the user sends it."""

    key: str
    value: Any
    make: Callable[[], object]  # sets it in the document


class ConfigForm(MountedWhole, Container):
    """Rows of a document, an editor over them, and the keys that change it.

    Without a run, changes are made at once. During a run only live settings can change: a step or an undo is a proposal
    until the user sends it. help: shows the help on the row under the cursor, and notes.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "edit", id="config.edit", tooltip="Edit, switch or send the value; fold a section"),
        Binding("right,plus", "step(1)", "more", show=False, id="config.more", tooltip="Raise the value, or unfold"),
        Binding("left,minus", "step(-1)", "less", show=False, id="config.less", tooltip="Lower the value, or fold"),
        Binding(
            "v", "view", "view", id="config.view", tooltip="Change the view: basic settings, all, or the changed ones"
        ),
        Binding("y", "copy", "copy", show=False, id="config.copy", tooltip="Copy the setting or section as TOML"),
        Binding("backspace", "reset", "reset", show=False, id="config.reset", tooltip="Restore the preset's value"),
        Binding("f", "fold_all", "fold", show=False, id="config.fold", tooltip="Fold or unfold all sections"),
    ]

    class Changed(Message):
        """The document has changed, or its view."""

        def __init__(self, *, document: bool) -> None:
            super().__init__()
            self.document = document

    class LiveSettingChanged(Message):
        """Request that the current run uses `value` for `key`."""

        def __init__(self, key: str, value: Any) -> None:
            super().__init__()
            self.key = key
            self.value = value

    class TomlRequested(Message):
        """Request to edit the setting under the cursor as TOML."""

    view: View = "basic"
    shown = 0
    """Number of settings in the view."""
    words = ""
    """Words that the settings are searched for."""
    running = False
    """True while a run is active."""
    _editor: FieldEditor | None = None
    note = ""
    """Text above the help: a problem, or what a key would do."""

    def __init__(self, document: ConfigDocument, help: FieldHelp) -> None:
        super().__init__(id="config-form")
        self._help = help
        self._folded: set[str] = set()
        self.edit_document(document)

    def edit_document(self, document: ConfigDocument) -> None:
        """Edit `document`, without what was proposed and sent for another document or run."""
        self.document = document
        self.proposal: Proposal | None = None
        self._sent: set[str] = set()  # to the run, which has not confirmed them
        self._newest: SettingChanged | None = None  # of the run's changes that the document includes

    def compose(self) -> ComposeResult:
        yield ConfigRows()

    def on_mount(self) -> None:
        self.watch(self.rows, "scroll_y", self._place, init=False)

    def on_resize(self) -> None:
        self._place()

    @property
    def rows(self) -> ConfigRows:
        """Widget that draws the rows."""
        return self.query_one(ConfigRows)

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
            proposed={self.proposal.key: self.proposal.value} if self.proposal else {},
        )
        self.rows.show(rows, "  No matching settings" if self.words else "  No changed settings")
        self._place()
        self._help.show(self.rows.selected, self.note)
        self.shown = sum(row.shown for row in rows if isinstance(row, SectionRow))

    @property
    def next_view(self) -> View:
        """View that the key shows next."""
        return _NEXT[self.view]

    def go_to(self, key: str) -> None:
        """Move the cursor to a setting, also if it is hidden or its section is folded."""
        if not self.rows.go_to(key):
            self._folded.discard(key.partition(".")[0])
            self.show(keep=key)
            self.rows.go_to(key)
            self.post_message(self.Changed(document=False))

    def say(self, text: str) -> None:
        """Show a note above the help until the cursor moves; an empty text removes it.

        A key is given by the id of its binding in braces.
        """
        safe = visible(text)
        self.note = with_keys(safe, *self.ancestors_with_self) if "{" in safe else safe
        self._help.show(self.rows.selected, self.note)

    # The editor of a value

    def _edit(self, row: FieldRow) -> None:
        self.close()
        self._editor = FieldEditor(row.field, row.value)
        self.mount(self._editor)
        self._place()
        self._editor.focus()

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
        if self._editor is not None and self._is_valid(event.value):
            field = self._editor.field
            self.close()
            self._set(field.key, parse(field, event.value))

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self._is_valid(event.value)

    def _is_valid(self, text: str) -> bool:
        """Show the rule that the typed text breaks, or else which values are allowed."""
        if self._editor is None:
            return False
        field = self._editor.field
        try:
            parse(field, text)
        except ValueError as error:
            self.say(f"✖ {field.name} {error}")
            return False
        self.say(limits(field))
        return True

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

    @on(ConfigRows.Moved)
    def _leave_row(self) -> None:
        row = self.rows.selected
        if self.proposal is not None and (row is None or row.key != self.proposal.key):
            self.discard()
        elif self.proposal is None:
            self.close()

    @on(ConfigRows.Opened)
    def action_choose(self) -> None:
        """Edit, switch or send the value under the cursor, or fold the section."""
        row = self.rows.selected
        if isinstance(row, SectionRow):
            self._fold(row, is_open=not row.is_open)
        elif row is None:
            return
        elif row.locked:
            self._explain_lock(row.key)
        elif self.proposal is not None:
            self._send(self.proposal)
        elif kind_of(row.field) == "boolean" and isinstance(row.value, bool):
            self.action_step(1)
        elif not editable(row.field, row.value):
            self.post_message(self.TomlRequested())
        elif kind_of(row.field) == "choice":
            choices = [Reply(one, one, "current" if one == row.value else "") for one in row.field.schema["enum"]]
            self.app.push_screen(AnswerScreen(row.key, choices), partial(self._set, row.key))
        else:
            self._edit(row)

    def action_step(self, direction: int) -> None:
        """Step the value under the cursor up (direction 1) or down (-1), or unfold or fold the section."""
        row = self.rows.selected
        if isinstance(row, SectionRow):
            self._fold(row, is_open=direction > 0)
        elif row is not None:
            value = stepped(row.field, row.value, direction)
            self._change(row, value, partial(self.document.set, row.key, value))

    def _fold(self, row: SectionRow, *, is_open: bool) -> None:
        (self._folded.discard if is_open else self._folded.add)(row.key)
        self.show()

    def action_fold_all(self) -> None:
        """Fold all sections, or unfold all if any is folded."""
        self._folded = set() if self._folded else {*sections()}
        self.show()

    def action_view(self) -> None:
        """Show the basic settings, all, or those that differ from the preset."""
        self.view = self.next_view
        self.show()
        self.post_message(self.Changed(document=False))

    def action_copy(self) -> None:
        """Copy the setting under the cursor as TOML, or those of the section."""
        if row := self.rows.selected:
            keys = [key for key in fields_by_key() if key == row.key or key.startswith(f"{row.key}.")]
            text = "\n".join(toml_line(key, self.document.get(key)) for key in keys)
            self.copy(text, row.key if isinstance(row, FieldRow) else counted(len(keys), "setting"))

    def action_reset(self) -> None:
        """Reset the setting under the cursor to the preset's value."""
        row = self.rows.selected
        if isinstance(row, FieldRow) and self.rows.has_focus:
            self._change(row, self.document.preset_value(row.key), partial(self.document.reset, row.key))

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
            self.say(str(error))
        self.show()
        self.post_message(self.Changed(document=False))

    def travel(self, step: Callable[[], bool], back: Callable[[], bool]) -> None:
        """Undo or redo a step of the document; during a run, propose it. back: the opposite."""
        if not self.running:
            self._make(step)
            return
        document, changed = self.document, {}
        before = {key: document.get(key) for key in fields_by_key()}
        if step():
            changed = {key: document.get(key) for key, value in before.items() if document.get(key) != value}
            back()
        if len(changed) == 1 and fields_by_key()[key := next(iter(changed))].live:
            self.go_to(key)
            self.rows.focus()
            proposal = Proposal(key, changed[key], step)
            self.call_after_refresh(self._propose, proposal)  # after the cursor has moved there
        else:
            self.say("during a run, only a change of one live setting can be undone or redone")

    def discard(self) -> None:
        """Restore the value of the run."""
        self.proposal = None
        self.close()
        self.show()

    def _set(self, key: str, value: Any) -> None:
        """Set a value that the user has entered; None for nothing."""
        if value is None:
            return
        change = partial(self.document.set, key, value)
        if not self.running:
            self._make(change)
        elif fields_by_key()[key].live:
            self._send(Proposal(key, value, change))
        else:
            self._explain_lock(key)

    def _change(self, row: FieldRow, value: Any, change: Callable[[], object]) -> None:
        """Change the value of `row`; during a run, only propose that."""
        if row.locked:
            self._explain_lock(row.key)
        elif self.running:
            self._propose(Proposal(row.key, value, change))
        else:
            self._make(change)

    def _explain_lock(self, key: str) -> None:
        if self.document.syntax_error:
            self.say("the TOML has an error: fix it there first ({config.toml})")
        else:
            self.say(f"{key} cannot change during a run: only settings marked live can")

    def _propose(self, proposal: Proposal) -> None:
        if proposal.value == self.document.get(proposal.key):
            self.discard()
            return
        self.proposal = proposal
        self.show()
        self.say(f"{{config.edit}} sends {proposal.key} to the run, {{config.back}} discards it")

    def _send(self, proposal: Proposal) -> None:
        self.proposal = None
        self.close()
        if self._make(proposal.make):
            self._sent.add(proposal.key)
            self.show()
            self.post_message(self.LiveSettingChanged(proposal.key, proposal.value))

    def _make(self, change: Callable[[], object]) -> bool:
        """Change the document; return whether it is another now."""
        before = self.document.text
        try:
            change()
        except TrainerError as error:
            self.say(str(error))
        if self.document.text == before:
            return False
        self.show()
        self.post_message(self.Changed(document=True))
        return True
