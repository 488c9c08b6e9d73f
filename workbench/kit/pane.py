"""The base classes of panes, of widgets that work with all their children or not at all, and of their readings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from textual import events
from textual.actions import SkipAction
from textual.containers import Vertical
from textual.messages import Prune
from textual.reactive import reactive

from workbench.kit.banner import NOTE_SECONDS, Banner
from workbench.run.view import RunView
from workbench.text import typed, visible

if TYPE_CHECKING:
    from textual.widget import Widget
else:
    Widget = object  # Textual takes the styles of the first base that is a widget: not of the mixin


class MountedWhole(Widget):
    """A widget whose `on_mount` and workers may rely on its composed children.

    Textual composes no children for a widget that is removed before it was shown, but mounts it. When it removes a
    widget, it cancels the workers after the children have gone; here they end before.
    """

    async def on_event(self, event: events.Event) -> None:
        if not isinstance(event, events.Mount) or (
            self.is_attached and not {*self.app.screen_stack}.isdisjoint(self.ancestors_with_self)
        ):
            await super().on_event(event)

    async def on_prune(self, event: Prune) -> None:  # Textual calls the handler of the base as well
        self.workers.cancel_node(self)

    def warn(self, problem: str) -> None:
        """Show a problem for some seconds; its text is never markup."""
        self.notify(visible(problem), severity="warning", markup=False)

    def copy(self, text: str, what: str) -> None:
        """Copy `text` to the clipboard and confirm it. what: names it, as in "the path"."""
        self.app.copy_to_clipboard(typed(text))
        self.confirm(f"Copied {what} (through the terminal: OSC 52)")  # which may not allow it

    def action_copy_text(self) -> None:
        """Copy the selected text of a screen; without one, leave the key to others."""
        if not (text := self.screen.get_selected_text()):
            raise SkipAction
        self.copy(text, "the selected text")

    def confirm(self, message: str) -> None:
        """Show for some seconds what a key has done, in the banner of the screen."""
        Banner.of(self.screen).say(message, "note", seconds=NOTE_SECONDS)


class Badge(NamedTuple):
    """Mark behind the name of a pane in the strip, if something there wants attention. No text: nothing does.

    text: a sign or a number, safe to print, such as `12`, `⚠` or `✖2`.
    """

    text: str = ""
    level: Literal["", "warning", "error"] = ""


class Pane(MountedWhole, Vertical):
    """Base class of the panes: a titled part of the main screen with an F-key. The app decides where to show it."""

    TITLE = ""  # in the strip of panes, on its border, in the command palette and in the help
    HELP = ""  # what the pane is for, above its keys in the help; a key as the id of its binding in braces
    DOCS = "workbench"  # the page of the documentation that its help opens

    badge: reactive[Badge] = reactive(Badge(), repaint=False)
    """Mark that the strip of panes shows. A pane sets it whenever it likes, or by `badge_for`."""

    def on_mount(self) -> None:
        self.watch(self.screen, "focused", self._show_focus)

    def _show_focus(self) -> None:
        """Mark the pane that has the focus. With `:focus-within`, each move would restyle all widgets of the pane."""
        if self.has_class("-current") != self.has_focus_within:
            self.set_class(self.has_focus_within, "-current", update=False)
            self.app.stylesheet.apply(self)

    def show_run(self, view: RunView) -> None:
        """Show the state of the run. Called often: a pane that is not displayed does as little as possible."""

    def badge_for(self, view: RunView) -> Badge:
        """Return the badge for the state of the run, quickly. Called often, and for hidden panes as well."""
        return self.badge

    def update_run(self, view: RunView, *, shown: bool = True) -> None:
        """Update the badge and, if `shown`, the pane."""
        self.badge = self.badge_for(view)
        if shown:
            self.show_run(view)

    def take_focus(self) -> None:
        """Focus the first focusable widget of this pane, unless the focus is already in the pane."""
        first = next((child for child in self.query("*") if child.focusable), None)
        if first is not None and not self.has_focus_within:
            first.focus()


_REST = 20  # times the cost of a reading: it takes at most a twentieth of a core

T = TypeVar("T")


class Throttled:
    """Limit of one repeated reading. rests: it is repeated only after a rest of 20 times what it cost."""

    def __init__(self, *, rests: bool = True) -> None:
        self._rests = rests
        self._under_way = False
        self._rest_until = 0.0  # on the monotonic clock

    async def read(self, reading: Callable[[], T]) -> T | None:
        """Return what `reading` finds, on a thread; None if one is under way or its rest has not passed."""
        if self._under_way or time.monotonic() < self._rest_until:
            return None
        self._under_way = True

        def timed() -> tuple[T, float]:
            began = time.thread_time()  # the processor time that the trainer does not get
            return reading(), time.thread_time() - began

        try:
            found, seconds = await asyncio.to_thread(timed)
        finally:
            self._under_way = False
        if self._rests:
            self._rest_until = time.monotonic() + _REST * seconds
        return found
