"""The keys that apply now, in one line at the bottom of a screen.

Textual's own footer has a widget for every key, and makes all of them again whenever one changes. That takes some
0.1 s, and a key that switches to another pane changes them four times.
"""

from __future__ import annotations

from itertools import accumulate
from typing import ClassVar, NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

from workbench.kit.guard import GuardedWidget

_PINNED = ("command_palette", "app.help", "app.leave")
_FIRST = ("enter", "space", "X")  # what most users want most often, and how a run is stopped
_MORE = " … "


class ShownKey(NamedTuple):
    """A key in the footer."""

    key: str
    name: str
    description: str
    enabled: bool
    tooltip: str

    @property
    def width(self) -> int:
        """Columns of the key and its description."""
        return cell_len(f" {self.name} {self.description} ")


class KeyFooter(GuardedWidget, Widget):
    """A line of the keys that are active now. A click on one presses it.

    Escape, the palette, help and quit are at the right end whatever the width. Of the others, enter, space and X come
    first, then the keys of the widget with the focus and those around it; … stands for those that do not fit.
    """

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "key-footer--key",
        "key-footer--description",
        "key-footer--disabled",
        "key-footer--hover",
        "key-footer--separator",
    }

    def __init__(self) -> None:
        super().__init__()
        self.keys: list[ShownKey] = []
        self.pinned: list[ShownKey] = []
        self._hovered: ShownKey | None = None

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._follow)

    def _follow(self, screen: Screen[object]) -> None:
        """Show the first key of each action; of help and quit, the first that is a character, as long as none types."""
        keys, pinned = dict[str, ShownKey](), dict[str, ShownKey]()
        escapes = ""  # the action of escape, which other keys may have as well
        for _, binding, enabled, tooltip in screen.active_bindings.values():
            name = self.app.get_key_display(binding)
            key = ShownKey(binding.key, name, binding.description, enabled, tooltip or binding.description)
            if binding.action in _PINNED:
                if binding.action == "command_palette":
                    key = key._replace(description="commands")
                if binding.action not in pinned or (len(name) == 1 < len(pinned[binding.action].name)):
                    pinned[binding.action] = key
            elif binding.show and binding.key == "escape":
                pinned.setdefault("", key)
                escapes = escapes or binding.action
            elif binding.show:
                keys.setdefault(binding.action, key)
        keys.pop(escapes, None)
        ends = [pinned[action] for action in ("", *_PINNED) if action in pinned]
        first = sorted(keys.values(), key=lambda key: _FIRST.index(key.key) if key.key in _FIRST else len(_FIRST))
        if (first, ends) != (self.keys, self.pinned):
            self.keys, self.pinned = first, ends
            self._hover(None)
            self.refresh()

    @property
    def fitting(self) -> list[ShownKey]:
        """The keys that fit between the left end and those at the right end."""
        room = self._room
        if sum(key.width for key in self.keys) <= room:
            return self.keys
        ends = accumulate(key.width for key in self.keys)
        return [key for key, end in zip(self.keys, ends, strict=True) if end <= room - len(_MORE)]

    @property
    def _room(self) -> int:
        return self.size.width - sum(key.width for key in self.pinned)

    def render_line(self, y: int) -> Strip:
        keys = [segment for key in self.fitting for segment in self._segments(key)]
        if len(self.fitting) < len(self.keys):
            keys.append(Segment(_MORE, self._style("description")))
        end = [segment for key in self.pinned for segment in self._segments(key)]
        if keys and end:
            end = [Segment("▏", self._style("separator")), Segment(end[0].text.lstrip(), end[0].style), *end[1:]]
        return Strip([*Strip(keys).adjust_cell_length(max(self._room, 0), self.rich_style), *end]).adjust_cell_length(
            self.size.width, self.rich_style
        )

    def _segments(self, key: ShownKey) -> list[Segment]:
        over = Style() if key.enabled else self._style("disabled")
        if key == self._hovered:
            over = self._style("hover")
        return [
            Segment(f" {key.name} ", self._style("key") + over),
            Segment(key.description, self._style("description") + over),
            Segment(" ", self._style("description") + over),
        ]

    def _style(self, part: str) -> Style:
        return self.get_component_rich_style(f"key-footer--{part}")

    def on_mouse_move(self, event: events.MouseMove) -> None:
        self._hover(self._at(event.x))

    def on_leave(self) -> None:
        self._hover(None)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        if (key := self._at(event.x)) is None:
            return
        if key.enabled:
            self.app.simulate_key(key.key)
        else:
            self.app.bell()

    def _at(self, x: int) -> ShownKey | None:
        """Return the key in column `x`."""
        for start, keys in ((max(self._room, 0), self.pinned), (0, self.fitting)):
            end = start
            for key in keys if x >= start else ():
                end += key.width
                if x < end:
                    return key
        return None

    def _hover(self, key: ShownKey | None) -> None:
        if key != self._hovered:
            self._hovered = key
            self.tooltip = key.tooltip if key else None
            self.refresh()
