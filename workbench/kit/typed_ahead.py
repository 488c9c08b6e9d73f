"""Keys that are typed before the screen that they are for can take them, or after it has closed."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

from textual import events
from textual.app import App
from textual.message_pump import MessagePump
from textual.screen import Screen

_PATIENCE = 1.0  # seconds that a key may keep those behind it waiting: its handler may be waiting for one of them


class KeepsText:
    """A screen below a dialog that is about to open: text is kept for the dialog, any other key discards it."""


class Question:
    """A dialog whose answer acts, so that no key answers it that was typed before it could be read."""


class TypedAhead(App[str]):
    """An application in which a key never acts on a screen or pane other than the one it was typed for.

    After a busy moment several keys arrive together, and all would go to the widget with the focus, whatever the first
    of them does. So a key waits until the one before it has been handled and the focus has moved. A screen gets no key
    before it has been painted, because until then its field does not have the focus. What was typed before goes to it
    afterwards; a `Question` drops it.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._kept: list[events.Key] = []
        self._ahead: deque[events.Key] = deque()  # keys behind the one that is being handled
        self._handled: events.Key | None = None  # the key that is being handled
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
            self._typed_on[event] = self.screen
            self._ahead.append(event)
            await self._take_next()
        else:
            await super().on_event(event)

    async def _take_next(self) -> None:
        """Handle the keys that have arrived, up to one that those behind it must wait for."""
        while self._ahead and self._handled is None:
            key = self._ahead.popleft()
            if self._typed_on[key] in self.screen_stack:
                await self._take(key)

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
        self._handled = key
        way = (self.focused or top).ancestors_with_self
        await super().on_event(key)
        # The first round ends behind the key. The second ends behind what the key made these widgets do: a message of
        # the pane to its screen, and the focus, which Textual moves by a message to the application.
        await self._follow(key, [*way, *way])
        asyncio.get_running_loop().call_later(_PATIENCE, self.call_later, self._follow, key, [])

    async def _follow(self, key: events.Key, way: Sequence[MessagePump]) -> None:
        """Send a callback along the way of `key`, from widget to parent; at its end the next key is taken."""
        for place, node in enumerate(way, 1):
            if node.call_later(self._follow, key, way[place:]):
                return
        if self._handled is key:
            self._handled = None
            await self._take_next()

    def _await_paint(self) -> None:
        top = self.screen
        top.call_after_refresh(self.call_later, self._hand_over, top)

    async def _hand_over(self, screen: Screen[Any]) -> None:
        """Let `screen`, which is painted, have what was typed for it, in order."""
        self._painted.setdefault(screen, monotonic())
        if screen is self.screen and not isinstance(screen, KeepsText):
            keys, self._kept = sorted(self._kept, key=lambda key: key.time, reverse=True), []
            for key in keys:
                if self._typed_on[key] in self.screen_stack:
                    self._typed_on[key] = screen
                    self._ahead.appendleft(key)
            await self._take_next()

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
