"""Changes of the configuration by keys: made at once, or during a run proposed until the user sends them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from textual.app import App
from textual.notifications import SeverityLevel

from trainer.errors import TrainerError
from trainer.events import SettingChanged
from workbench.config.document import ConfigDocument
from workbench.config.fields import fields_by_key, stepped
from workbench.config.form import ConfigForm
from workbench.config.rows import FieldRow


class ConfigEditor(Protocol):
    """The pane that shows a document, as far as its changes and files use it."""

    @property
    def app(self) -> App[Any]: ...
    @property
    def document(self) -> ConfigDocument: ...
    @property
    def form(self) -> ConfigForm: ...
    @property
    def writing(self) -> asyncio.Lock: ...
    def take_typed(self) -> None: ...
    def document_changed(self) -> None: ...
    def refresh_view(self) -> None: ...
    def focus_field(self, key: str) -> None: ...
    def request_open(self, source: str) -> None: ...
    def notify(self, message: str, *, severity: SeverityLevel = "information", markup: bool = True) -> None: ...
    def run_worker(self, work: Any, *, group: str, exclusive: bool = False) -> object: ...
    def call_after_refresh(self, callback: Callable[..., Any], *arguments: Any) -> object: ...


class Proposal(NamedTuple):
    """Value of a live setting that the run gets once the user sends it."""

    key: str
    value: Any
    make: Callable[[], object]  # sets it in the document


class Changes:
    """Changes of the document on `pane`.

    During a run only live settings can change: a step or an undo is a proposal until the user sends it. send: sets a
    live setting of the current run.
    """

    def __init__(self, pane: ConfigEditor, send: Callable[[str, Any], object]) -> None:
        self._pane = pane
        self._send_to_run = send
        self.running = False
        """Whether a run is active."""
        self.forget()

    def forget(self) -> None:
        """Forget what was proposed and sent, because the document or the run is another."""
        self.proposal: Proposal | None = None
        self.sent: set[str] = set()
        """Settings that were sent to the run, which has not confirmed them."""
        self._newest: SettingChanged | None = None  # of the run's changes that the document includes

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
        self.sent -= {setting.key for setting in new}
        try:
            for setting in new:
                self._pane.document.set(setting.key, setting.value)
        except TrainerError as error:
            self._pane.form.say(str(error))
        self._pane.refresh_view()

    def set(self, key: str, value: Any) -> None:
        """Set a value that the user has entered."""
        change = partial(self._pane.document.set, key, value)
        if not self.running:
            self._make(change)
        elif fields_by_key()[key].live:
            self._send(Proposal(key, value, change))
        else:
            self.explain_lock(key)

    def step(self, row: FieldRow, direction: int) -> None:
        """Step the value of `row` up (direction 1) or down (-1)."""
        value = stepped(row.field, row.value, direction)
        self._change(row, value, partial(self._pane.document.set, row.key, value))

    def reset(self, row: FieldRow) -> None:
        """Reset the setting of `row` to the preset's value."""
        document = self._pane.document
        self._change(row, document.preset_value(row.key), partial(document.reset, row.key))

    def undo(self) -> None:
        """Undo the last change."""
        self._travel(self._pane.document.undo, self._pane.document.redo)

    def redo(self) -> None:
        """Redo the change that was undone."""
        self._travel(self._pane.document.redo, self._pane.document.undo)

    def send(self) -> None:
        """Make the proposed change, and send it to the run."""
        if self.proposal is not None:
            self._send(self.proposal)

    def discard(self) -> None:
        """Restore the value of the run."""
        self.proposal = None
        self._pane.form.close()
        self._pane.refresh_view()

    def explain_lock(self, key: str) -> None:
        """Say why a setting cannot be changed."""
        if self._pane.document.syntax_error:
            self._pane.form.say("the TOML has an error: fix it there first ({config.toml})")
        else:
            self._pane.form.say(f"{key} cannot change during a run: only settings marked live can")

    def _change(self, row: FieldRow, value: Any, change: Callable[[], object]) -> None:
        """Change the value of `row`; during a run, only propose that."""
        if row.locked:
            self.explain_lock(row.key)
        elif self.running:
            self._propose(Proposal(row.key, value, change))
        else:
            self._make(change)

    def _travel(self, step: Callable[[], bool], back: Callable[[], bool]) -> None:
        """Undo or redo a step of the document; during a run, propose it."""
        if not self.running:
            self._make(step)
            return
        self._pane.take_typed()
        document, changed = self._pane.document, {}
        before = {key: document.get(key) for key in fields_by_key()}
        if step():
            changed = {key: document.get(key) for key, value in before.items() if document.get(key) != value}
            back()
        if len(changed) == 1 and fields_by_key()[key := next(iter(changed))].live:
            self._pane.focus_field(key)
            proposal = Proposal(key, changed[key], step)
            self._pane.call_after_refresh(self._propose, proposal)  # after the cursor has moved there
        else:
            self._pane.form.say("during a run, only a change of one live setting can be undone or redone")

    def _propose(self, proposal: Proposal) -> None:
        if proposal.value == self._pane.document.get(proposal.key):
            self.discard()
            return
        self.proposal = proposal
        self._pane.refresh_view()
        self._pane.form.say(f"{{config.edit}} sends {proposal.key} to the run, {{config.back}} discards it")

    def _send(self, proposal: Proposal) -> None:
        self.proposal = None
        self._pane.form.close()
        if self._make(proposal.make, proposal.key):
            self._send_to_run(proposal.key, proposal.value)

    def _make(self, change: Callable[[], object], sent: str = "") -> bool:
        """Change the document; return whether it is another now. sent: key of the setting that the run gets."""
        self._pane.take_typed()
        before = self._pane.document.text
        try:
            change()
        except TrainerError as error:
            self._pane.form.say(str(error))
        if self._pane.document.text == before:
            return False
        self.sent |= {sent} - {""}
        self._pane.document_changed()
        return True
