"""Jump mode: a letter on every pane of the strip and on every widget that can take the focus; the letter goes there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Offset
from textual.screen import Screen
from textual.widgets import Static

from workbench.kit.dialog import Dialog
from workbench.kit.pane_strip import PaneStrip

LETTERS = "asdfghjklwertyuiopzxcvbnm1234567890"  # without q, which quits


class Target(NamedTuple):
    """A place to jump to."""

    place: Offset
    go: Callable[[], object]


def targets(screen: Screen[Any]) -> list[Target]:
    """Return the panes of the strip, then the visible widgets that can take the focus."""
    found = []
    for strip in screen.query(PaneStrip):
        for tab, start, _ in strip.places():
            go = partial(strip.post_message, PaneStrip.Chosen(tab.id))
            found.append(Target(strip.region.offset + Offset(start, 0), go))
    for widget in screen.focus_chain:
        shown = screen.find_widget(widget).visible_region
        if shown.area:
            found.append(Target(shown.offset, partial(screen.set_focus, widget)))
    return found


class JumpScreen(Dialog[int]):
    """Overlay with a letter on each target. The result is the number of the target that was chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "cancel", id="jump.cancel", tooltip="Close without a jump"),
    ]

    def __init__(self, places: Sequence[Offset]) -> None:
        super().__init__()
        self._places = places[: len(LETTERS)]

    @classmethod
    def toggle(cls, app: App[Any]) -> None:
        """Show the letters of the screen on top, or remove them."""
        if isinstance(app.screen, cls):
            app.screen.dismiss()
            return
        found = targets(app.screen)

        def jump(chosen: int | None) -> None:
            if chosen is not None:
                app.call_later(found[chosen].go)

        app.push_screen(cls([target.place for target in found]), jump)

    def compose(self) -> ComposeResult:
        for letter, place in zip(LETTERS, self._places, strict=False):
            label = Static(letter, markup=False, classes="letter")
            label.styles.offset = place
            yield label

    def on_key(self, event: events.Key) -> None:
        chosen = LETTERS.find(event.character or " ")
        if 0 <= chosen < len(self._places):
            event.stop()
            self.dismiss(chosen)
