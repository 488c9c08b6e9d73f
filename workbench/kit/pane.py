"""The base class of panes. A pane shows one side of a run and communicates by messages."""

from __future__ import annotations

from textual import actions
from textual.containers import Vertical

from workbench.kit.whole import MountedWhole
from workbench.run.view import RunView


class Pane(MountedWhole, Vertical):
    """One side of a run, with a title and an F-key. The app decides where and when to show it."""

    TITLE = ""  # on its border, in the command palette and in the help
    HELP = ""  # what the pane is for, in a few lines, above its keys in the help
    _applying: tuple[bool | None, ...] = ()  # which of its keys apply, as last reported to the footer

    def show_run(self, view: RunView) -> None:
        """Show the state of the run. Called often: a pane that is not displayed does as little as possible."""

    def refresh_keys(self) -> None:
        """Update the footer, but only if different keys apply than before: Textual keeps every old footer."""
        parsed = [actions.parse(binding.action) for _, binding in self._bindings]
        applying = tuple(self.check_action(name, parameters) for _, name, parameters in parsed)
        if applying != self._applying:
            self._applying = applying
            self.refresh_bindings()

    def take_focus(self) -> None:
        """Focus the first focusable widget of this pane, unless the focus is already in the pane."""
        first = next((child for child in self.query("*") if child.focusable), None)
        if first is not None and not self.has_focus_within:
            first.focus()
