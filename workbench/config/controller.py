"""The document on the screen and, during a run, the values that are proposed and sent to it; without Textual."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from trainer.errors import UsageError
from trainer.events import SettingChanged
from trainer.runs.listing import PPO
from workbench.config.document import ConfigDocument
from workbench.config.fields import fields_by_key


class Draft(NamedTuple):
    """Proposed value of a live setting, which the run gets once the user sends it."""

    key: str
    value: Any
    act: Callable[[], object]  # sets the value in the document
    back: Callable[[], object]


class ConfigController:
    """One document and what the run that it configures makes of its changes.

    Without a run, changes are made at once. During a run only live settings can change: a step or an undo is a draft
    until the user sends it.
    """

    def __init__(self, document: ConfigDocument) -> None:
        self.running = False
        self.open(document)

    def open(self, document: ConfigDocument) -> None:
        """Edit another document."""
        self.document = document
        self.draft: Draft | None = None
        self.pending: dict[str, Any] = {}
        """Values sent to the run that it has not confirmed."""
        self._newest: object = None  # the run's newest setting change that the document includes

    @property
    def read_only(self) -> bool:
        """Return whether this is a configuration of a reward model or of DPO, which have no form."""
        return self.document.kind != PPO

    def set_running(self, running: bool) -> bool:
        """Set whether a run is active, and forget drafts; return False if nothing changes."""
        if running == self.running:
            return False
        self.running = running
        self.draft = None
        self.pending.clear()
        return True

    def follow(self, settings: Sequence[SettingChanged]) -> bool:
        """Copy what the active run has set since the last call, which is pending no longer; return False if nothing.

        settings: all changes of the run, in order. Raises UsageError while the text is not TOML.
        """
        newest = settings[-1] if settings else None
        if not self.running or newest is self._newest or self.read_only:
            return False
        seen = next((place for place, setting in enumerate(settings) if setting is self._newest), -1)
        self._newest = newest
        new = [setting for setting in settings[seen + 1 :] if setting.key in fields_by_key()]
        for setting in new:
            self.pending.pop(setting.key, None)
        for setting in new:
            self.document.set(setting.key, setting.value)
        return True

    def change(self, act: Callable[[], object], back: Callable[[], object]) -> dict[str, Any] | None:
        """Change the document by `act`; return the values to send to the active run, or None if nothing changed.

        Raises UsageError if `act` fails, or if it changes what must wait for the end of the run: `back` then undoes it.
        """
        text, before = self.document.text, self._values()
        act()
        if self.document.text == text:
            return None
        changed = self._changed(before)
        if not self.running:
            return {}
        if not _all_live(changed):
            back()
            raise UsageError("cannot change this during a run: not a live setting")
        self.pending |= changed
        return changed

    def draft_of(self, act: Callable[[], bool], back: Callable[[], bool]) -> Draft | None:
        """Return the change that `act` makes, undone by `back`; None if it is not exactly one live setting."""
        before = self._values()
        if not act():
            return None
        changed = self._changed(before)
        back()
        if len(changed) == 1 and _all_live(changed):
            return Draft(*changed.popitem(), act, back)
        return None

    def _values(self) -> dict[str, Any]:
        return {key: self.document.get(key) for key in fields_by_key()}

    def _changed(self, before: Mapping[str, Any]) -> dict[str, Any]:
        return {key: self.document.get(key) for key, value in before.items() if self.document.get(key) != value}


def _all_live(keys: Mapping[str, Any]) -> bool:
    return all(fields_by_key()[key].about.live for key in keys)
