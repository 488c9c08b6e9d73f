"""Changes of the configuration by keys: made at once, or during a run proposed until the user sends them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from trainer.errors import TrainerError
from workbench.config.controller import ConfigController, Draft
from workbench.config.document import ConfigDocument
from workbench.config.fields import stepped
from workbench.config.form import ConfigForm
from workbench.config.rows import FieldRow


class Editor(Protocol):
    """The pane that shows the configuration, as far as changes use it."""

    @property
    def form(self) -> ConfigForm: ...
    def take_typed(self) -> None: ...
    def document_changed(self) -> None: ...
    def refresh_view(self) -> None: ...
    def focus_field(self, key: str) -> None: ...
    def call_after_refresh(self, callback: Callable[..., Any], *arguments: Any) -> object: ...


class Changes:
    """Changes of the document of `controller`, which `pane` shows. send: sets a live setting of the current run."""

    def __init__(self, pane: Editor, controller: ConfigController, send: Callable[[str, Any], object]) -> None:
        self._pane = pane
        self._controller = controller
        self._send = send

    @property
    def _document(self) -> ConfigDocument:
        return self._controller.document

    def set(self, key: str, value: Any) -> None:
        """Set a value that the user has entered."""
        self._change(lambda: self._document.set(key, value), self._document.undo)

    def step(self, row: FieldRow, direction: int) -> None:
        """Step the value of `row` up (direction 1) or down (-1)."""
        value = stepped(row.field, row.value, direction)
        self._propose(row, value, partial(self._document.set, row.key, value))

    def reset(self, row: FieldRow) -> None:
        """Reset the setting of `row` to the preset's value."""
        self._propose(row, self._document.preset_value(row.key), partial(self._document.reset, row.key))

    def undo(self) -> None:
        """Undo the last change."""
        self._travel(self._document.undo, self._document.redo)

    def redo(self) -> None:
        """Redo the change that was undone."""
        self._travel(self._document.redo, self._document.undo)

    def send(self) -> None:
        """Make the proposed change, and send it to the run."""
        draft, self._controller.draft = self._controller.draft, None
        self._pane.form.close()
        if draft is not None:
            self._change(draft.act, draft.back)

    def discard(self) -> None:
        """Restore the value of the run."""
        self._controller.draft = None
        self._pane.form.close()
        self._pane.refresh_view()

    def explain_lock(self) -> None:
        """Say why the value under the cursor cannot be changed."""
        if self._document.syntax_error:
            self._pane.form.say("the TOML has an error: fix it there first ({config.toml})")
        elif row := self._pane.form.rows.selected:
            self._pane.form.say(f"{row.key} cannot change during a run: only settings marked live can")

    def _propose(self, row: FieldRow, value: Any, act: Callable[[], object]) -> None:
        """Set the value of `row` by `act`; during a run only once the user sends it with enter."""
        if row.locked:
            self.explain_lock()
        elif self._controller.running:
            self._show_draft(Draft(row.key, value, act, self._document.undo))
        else:
            self._change(act, self._document.undo)

    def _travel(self, act: Callable[[], bool], back: Callable[[], bool]) -> None:
        """Undo or redo a step of the document; during a run only once the user sends it with enter."""
        if not self._controller.running:
            self._change(act, back)
            return
        self._pane.take_typed()
        if draft := self._controller.draft_of(act, back):
            self._pane.focus_field(draft.key)
            self._pane.call_after_refresh(self._show_draft, draft)  # after the cursor has moved there
        else:
            self._pane.form.say("during a run, only a change of one live setting can be undone or redone")

    def _show_draft(self, draft: Draft) -> None:
        if draft.value == self._document.get(draft.key):
            self.discard()
            return
        self._controller.draft = draft
        self._pane.refresh_view()
        self._pane.form.say(f"{{config.send}} sends {draft.key} to the run, {{config.back}} discards it")

    def _change(self, act: Callable[[], object], back: Callable[[], object]) -> None:
        """Change the document and send the change to an active run; undo it with `back` if it is not live."""
        self._pane.take_typed()
        try:
            to_send = self._controller.change(act, back)
        except TrainerError as error:
            self._pane.form.say(str(error))
            return
        if to_send is not None:
            for key, value in to_send.items():
                self._send(key, value)
            self._pane.document_changed()
