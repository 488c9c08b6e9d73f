"""Keys that are typed before the screen that they are for can take them, or after it has closed."""

from __future__ import annotations

import math
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

from textual import events
from textual.app import App
from textual.screen import Screen


class KeepsText:
    """A screen below a dialog that is about to open: text is kept for the dialog, any other key discards it."""


class Question:
    """A dialog whose answer acts, so that no key answers it that was typed before it could be read."""


class TypedAhead(App[str]):
    """An application in which a key never acts on a screen other than the one it was typed for.

    After a busy moment several keys arrive together, and all would go to the screen on top, whatever the first of them
    does. A screen gets no key before it has been painted, because until then its field does not have the focus. What
    was typed before goes to it afterwards; a `Question` drops it.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._kept: list[events.Key] = []
        self._typed_on: WeakKeyDictionary[events.Key, Screen[Any]] = WeakKeyDictionary()
        self._painted: WeakKeyDictionary[Screen[Any], float] = WeakKeyDictionary()  # and when, as `Key.time`

    def push_screen(self, *arguments: Any, **options: Any) -> Any:
        pushed = super().push_screen(*arguments, **options)
        self._await_paint()
        return pushed

    def is_painted(self, screen: Screen[Any]) -> bool:
        """Return whether `screen` has been on the terminal, so that it takes keys."""
        return screen in self._painted

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key) and not event.is_forwarded:
            await self._take(event)
        else:
            await super().on_event(event)

    async def _take(self, key: events.Key) -> None:
        """Handle `key` on the screen on top, or keep it until that screen or the dialog on its way can take it."""
        self._typed_on[key] = top = self.screen
        if isinstance(top, Question) and key.time < self._painted.get(top, math.inf):
            return
        if isinstance(top, KeepsText) and not key.is_printable:
            self._kept.clear()
        elif isinstance(top, KeepsText) or top not in self._painted:
            self._kept.append(key)
            self._await_paint()
            return
        await super().on_event(key)

    def _await_paint(self) -> None:
        top = self.screen
        top.call_after_refresh(self.call_later, self._hand_over, top)

    async def _hand_over(self, screen: Screen[Any]) -> None:
        """Let `screen`, which is painted, have what was typed for it, in order."""
        self._painted.setdefault(screen, monotonic())
        if screen is self.screen and not isinstance(screen, KeepsText):
            keys, self._kept = sorted(self._kept, key=lambda key: key.time), []
            for key in keys:
                if self._typed_on[key] in self.screen_stack:
                    await self._take(key)

    async def _on_key(self, event: events.Key) -> None:
        """Handle a key that no widget has handled, unless it was typed on a screen other than the one on top.

        If that screen is still open, a dialog has opened above it, and the key is for the dialog. If it has closed, the
        key is dropped.
        """
        typed_on = self._typed_on.get(event, self.screen)
        if typed_on is not self.screen:
            event.prevent_default()
            if typed_on in self.screen_stack:
                again = events.Key(event.key, event.character)
                again.time = event.time
                await self._take(again)
