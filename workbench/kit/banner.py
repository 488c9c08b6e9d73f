"""A message above the panes: an error stays until it is dismissed or settled, a success for some seconds."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from textual.content import Content
from textual.timer import Timer
from textual.widgets import Static

from workbench.kit.keys import keys_of
from workbench.text import visible

Kind = Literal["error", "done"]

DONE_SECONDS = 10.0  # how long a success stays
_SIGNS: dict[Kind, str] = {"error": "✖", "done": "✓"}


class Banner(Static):
    """A message that is hidden while it is empty. A key of the screen dismisses it."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(markup=False, id=id)
        self.display = False
        self._about: frozenset[str] = frozenset()
        self._timer: Timer | None = None

    def say(self, message: str, kind: Kind = "error", about: Collection[str] = ()) -> None:
        """Show `message`, one problem on each line. about: the causes that `settle` recognises."""
        key = keys_of(self.screen).get("app.put_away", "esc")
        shown = visible(message, keep_newlines=True).rstrip()
        self.update(Content.assemble((f"{_SIGNS[kind]} ", "bold"), shown, (f"   {key} hides this", "dim")))
        self.set_class(kind == "done", "-done")
        self.put_away()
        self.display, self._about = True, frozenset(about)
        if kind == "done":
            self._timer = self.set_timer(DONE_SECONDS, self.put_away)

    def settle(self, cause: str) -> None:
        """Hide the message if it is about `cause`, because the problem is gone."""
        if cause in self._about:
            self.put_away()

    def put_away(self) -> None:
        """Hide the message."""
        self.display, self._about = False, frozenset()
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
