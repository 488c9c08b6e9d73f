"""A message above the panes, which moves them down instead of covering them.

Errors and warnings stay until they are dismissed or settled, notes and successes for some seconds.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, NamedTuple

from textual.content import Content
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Static

from workbench.kit.keys import keys_of
from workbench.text import visible

Kind = Literal["error", "warning", "note", "done"]

DONE_SECONDS = 10.0  # how long a note or a success stays
NOTE_SECONDS = 3.0  # and the confirmation of a key, which nobody has to read
_SIGNS: dict[Kind, str] = {"error": "✖", "warning": "▲", "note": "›", "done": "✓"}
_STAY = ("error", "warning")


class _Shown(NamedTuple):
    text: str
    kind: Kind
    about: frozenset[str]
    seconds: float | None  # that it stays; None until it is dismissed


class Banner(Static):
    """A message that is hidden while it is empty. A key of the screen dismisses it, and so does a click.

    Any other message covers an error, which stays.
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(markup=False, id=id)
        self.display = False
        self._messages: list[_Shown] = []  # the last is shown
        self._timer: Timer | None = None

    @classmethod
    def of(cls, screen: Screen[Any]) -> Banner:
        """Return the banner of `screen`; a screen without one gets it, at its top."""
        for banner in screen.query(cls):
            return banner
        banner = cls()
        screen.mount(banner)
        return banner

    def say(
        self, message: str, kind: Kind = "error", about: Collection[str] = (), seconds: float | None = None
    ) -> None:
        """Show `message`, one problem on each line. about: the causes that `settle` recognises.

        seconds: how long a note or a success stays, if not as long as others.
        """
        covered = [shown for shown in self._messages if kind != "error" and shown.kind == "error"]
        stays = None if kind in _STAY else seconds or DONE_SECONDS
        self._show([*covered, _Shown(message, kind, frozenset(about), stays)])

    def settle(self, cause: str) -> None:
        """Remove messages about `cause`, because the problem is gone."""
        left = [shown for shown in self._messages if cause not in shown.about]
        if left != self._messages:
            self._show(left)

    def put_away(self) -> None:
        """Hide the message, and show the error that it covered."""
        self._show(self._messages[:-1])

    def _show(self, messages: list[_Shown]) -> None:
        self._messages = messages
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        self.display = bool(messages)
        if not messages:
            return
        text, kind, _, seconds = messages[-1]
        key = keys_of(self.screen).get("app.put_away")  # a dialog has none: there, the message goes with the dialog
        hint = (f"   {key} hides this", "$text-muted") if key and kind != "note" else ""
        shown = visible(text, keep_newlines=True).rstrip()
        self.update(Content.assemble((f"{_SIGNS[kind]} ", "bold"), shown, hint))
        for other in _SIGNS:
            self.set_class(other == kind, f"-{other}")
        if seconds is not None:
            self._timer = self.set_timer(seconds, self.put_away)

    on_click = put_away
