"""A message above the panes: an error until it is read or no longer holds, a success for some seconds."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from textual.content import Content
from textual.timer import Timer
from textual.widgets import Static

from workbench.kit.keys import keys_of
from workbench.text import visible

Kind = Literal["error", "done"]

DONE_SECONDS = 10.0  # that a success stays
_SIGNS: dict[Kind, str] = {"error": "✖", "done": "✓"}


class Banner(Static):
    """Hidden while there is nothing to say; a key of the screen puts it away."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(markup=False, id=id)
        self.display = False
        self._about: frozenset[str] = frozenset()
        self._timer: Timer | None = None

    def say(self, message: str, kind: Kind = "error", about: Collection[str] = ()) -> None:
        """Show `message`; each of its lines is one problem. about: what can `settle` it."""
        key = keys_of(self.screen).get("app.put_away", "esc")
        shown = visible(message, keep_newlines=True).rstrip()
        self.update(Content.assemble((f"{_SIGNS[kind]} ", "bold"), shown, (f"   {key} hides this", "dim")))
        self.set_class(kind == "done", "-done")
        self.put_away()
        self.display, self._about = True, frozenset(about)
        if kind == "done":
            self._timer = self.set_timer(DONE_SECONDS, self.put_away)

    def settle(self, cause: str) -> None:
        """Put the message away if it is about `cause`: it no longer holds."""
        if cause in self._about:
            self.put_away()

    def put_away(self) -> None:
        """Hide it."""
        self.display, self._about = False, frozenset()
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
