"""The keys that apply now, in one line at the bottom of a screen.

Textual's own footer has a widget for every key, and makes all of them again whenever one changes. That takes some
0.1 s, and a key that switches to another pane changes them four times.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

from workbench.kit.guard import GuardedWidget


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

    palette: whether the key of the command palette is shown at the right end.
    """

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "key-footer--key",
        "key-footer--description",
        "key-footer--disabled",
        "key-footer--hover",
        "key-footer--separator",
    }

    def __init__(self, *, palette: bool = True) -> None:
        super().__init__()
        self._has_palette = palette
        self.keys: list[ShownKey] = []
        self._palette: ShownKey | None = None
        self._hovered: ShownKey | None = None

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._follow)

    def _follow(self, screen: Screen[object]) -> None:
        """Show the first key of each action, and the key of the palette."""
        keys, palette = dict[str, ShownKey](), None
        for _, binding, enabled, tooltip in screen.active_bindings.values():
            name = self.app.get_key_display(binding)
            key = ShownKey(binding.key, name, binding.description, enabled, tooltip or binding.description)
            if binding.action == "command_palette":
                palette = key if self._has_palette else None
            elif binding.show:
                keys.setdefault(binding.action, key)
        shown = list(keys.values())
        if (shown, palette) != (self.keys, self._palette):
            self.keys, self._palette = shown, palette
            self._hover(None)
            self.refresh()

    def render_line(self, y: int) -> Strip:
        end = self._segments(self._palette)[:-1] if self._palette else []
        if end:
            end = [Segment("▏", self._style("separator")), Segment(end[0].text.lstrip(), end[0].style), *end[1:]]
            end.append(Segment(" ", self.rich_style))
        room = self.size.width - sum(segment.cell_length for segment in end)
        keys = Strip([segment for key in self.keys for segment in self._segments(key)])
        return Strip([*keys.adjust_cell_length(max(room, 0), self.rich_style), *end]).adjust_cell_length(
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
        if self._palette is not None and x >= self.size.width - self._palette.width:
            return self._palette
        end = 0
        for key in self.keys:
            end += key.width
            if x < end:
                return key
        return None

    def _hover(self, key: ShownKey | None) -> None:
        if key != self._hovered:
            self._hovered = key
            self.tooltip = key.tooltip if key else None
            self.refresh()
