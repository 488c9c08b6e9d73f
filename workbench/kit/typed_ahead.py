"""Keys that are typed before the screen that they are for has opened, or after it has closed."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from textual import events
from textual.message_pump import MessagePump
from textual.screen import Screen

_typed_on: WeakKeyDictionary[events.Key, Screen[Any]] = WeakKeyDictionary()


def forward(key: events.Key, screen: Screen[Any]) -> None:
    """Send `key` to `screen`, the one on top, as if it was typed there."""
    again = events.Key(key.key, key.character)
    _typed_on[again] = screen
    (screen.focused or screen)._forward_event(again)


class TypedAhead(MessagePump):
    """An application in which a key never acts on another screen than it was typed for.

    After a busy moment several keys arrive together, and all go to the screen on top, whatever the first of them does.
    """

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key) and not event.is_forwarded:
            _typed_on[event] = self.app.screen
        await super().on_event(event)

    async def _on_key(self, event: events.Key) -> None:
        """Handle a key that no widget has handled, unless it was typed on another screen than the one on top.

        If that screen is still open, a dialog has opened above it, and the key is for the dialog. If it has closed, the
        key is for nothing.
        """
        typed_on, top = _typed_on.get(event, self.app.screen), self.app.screen
        if typed_on is not top:
            event.prevent_default()
            if typed_on in self.app.screen_stack:
                forward(event, top)
