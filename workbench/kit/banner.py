"""A message above the panes: an error stays until it is dismissed or settled, others for some seconds."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NamedTuple

from textual.content import Content
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Static

from workbench.kit.keys import keys_of
from workbench.text import visible

Kind = Literal["error", "done", "note"]

DONE_SECONDS = 10.0  # how long a success stays
NOTE_SECONDS = 3.0  # and the confirmation of a key, which nobody has to read
_SIGNS: dict[Kind, str] = {"error": "✖", "done": "✓", "note": "›"}


class _Shown(NamedTuple):
    text: str
    kind: Kind
    about: frozenset[str]


class Banner(Static):
    """A message that is hidden while it is empty. A key of the screen dismisses it.

    A success or a note covers an error for some seconds; the error stays.
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(markup=False, id=id)
        self.display = False
        self._messages: list[_Shown] = []  # the last is shown
        self._timer: Timer | None = None

    def say(self, message: str, kind: Kind = "error", about: Collection[str] = ()) -> None:
        """Show `message`, one problem on each line. about: the causes that `settle` recognises."""
        covered = [shown for shown in self._messages if kind != "error" and shown.kind == "error"]
        self._show([*covered, _Shown(message, kind, frozenset(about))])

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
        text, kind, _ = messages[-1]
        hint = ""
        if kind != "note":
            hint = f"   {keys_of(self.screen).get('app.put_away', 'esc')} hides this"
        shown = visible(text, keep_newlines=True).rstrip()
        self.update(Content.assemble((f"{_SIGNS[kind]} ", "bold"), shown, (hint, "$text-muted")))
        self.set_class(kind != "error", "-done")
        if kind != "error":
            self._timer = self.set_timer(DONE_SECONDS if kind == "done" else NOTE_SECONDS, self.put_away)


def confirm(widget: Widget, message: str) -> None:
    """Show for some seconds what a key has done: in the banner of the screen, or at the top of one that has none."""
    banner = next(iter(widget.screen.query(Banner)), None)
    if banner is None:
        banner = Banner()
        widget.screen.mount(banner, before=0)
    banner.say(message, "note")


def copied(widget: Widget, what: str) -> None:
    """Confirm a copy, and say which way it went: the terminal may not allow it."""
    confirm(widget, f"Copied {what} (through the terminal: OSC 52)")
