"""What every pane of the workbench is: one side of a run, which speaks by messages."""

from __future__ import annotations

from textual import actions
from textual.containers import Vertical

from workbench.kit.whole import MountedWhole
from workbench.run.view import RunView


class Pane(MountedWhole, Vertical):
    """One side of a run, with a title and an F-key; the app decides where it stands and when it is seen."""

    TITLE = ""  # on its border, in the command palette and in the help
    HELP = ""  # what the pane is for, in a few lines, above its keys in the help
    _applying: tuple[bool | None, ...] = ()  # which of its keys apply, as last told to the footer

    def show_run(self, view: RunView) -> None:
        """Show how the run stands now; called often, so a pane that is not displayed does as little as it can."""

    def refresh_keys(self) -> None:
        """Let the footer follow where other keys apply than before, and only there: Textual keeps every old footer."""
        parsed = [actions.parse(binding.action) for _, binding in self._bindings]
        applying = tuple(self.check_action(name, parameters) for _, name, parameters in parsed)
        if applying != self._applying:
            self._applying = applying
            self.refresh_bindings()

    def take_focus(self) -> None:
        """Let what is used first in this pane hear the keys."""
        first = next((child for child in self.query("*") if child.focusable), None)
        if first is not None and not self.has_focus_within:
            first.focus()
