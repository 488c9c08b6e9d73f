"""Widgets whose parts are there when they are mounted, or that are not mounted at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import events

if TYPE_CHECKING:
    from textual.widget import Widget
else:
    Widget = object  # Textual takes the styles of the first base that is a widget, which this is not


class MountedWhole(Widget):
    """A widget whose `on_mount` may rely on what it composed.

    Textual mounts also what is taken away before it was shown, by a quick second key or by leaving, but composes no
    children for it.
    """

    async def on_event(self, event: events.Event) -> None:
        if not (isinstance(event, events.Mount) and (self._pruning or self.app._exit)):
            await super().on_event(event)
