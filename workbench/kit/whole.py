"""The base class of widgets that are mounted with all their children, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import events

if TYPE_CHECKING:
    from textual.widget import Widget
else:
    Widget = object  # Textual takes the styles of the first base that is a widget: not of this one


class MountedWhole(Widget):
    """A widget whose `on_mount` may rely on its composed children.

    Textual also mounts a widget that is removed before it was shown, by a quick second key or by leaving, but composes
    no children for it. Such a widget gets no mount event here.
    """

    async def on_event(self, event: events.Event) -> None:
        if not (isinstance(event, events.Mount) and (self._pruning or self.app._exit)):
            await super().on_event(event)
