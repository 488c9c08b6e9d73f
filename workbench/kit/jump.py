"""Jump mode: a letter on every pane of the strip and on every widget that can take the focus; the letter goes there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from textual import events
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.geometry import Offset
from textual.screen import Screen
from textual.widgets import Static

from workbench.kit.dialog import Dialog
from workbench.kit.keys import bind, remapped
from workbench.kit.pane_strip import TopLines

LETTERS = "asdfghjklwertyuiopzxcvbnm1234567890"  # without q, which quits


class JumpScreen(Dialog[None]):
    """Overlay with a letter on each target, which goes there; the keys of the panes go to them as ever."""

    BINDINGS: ClassVar[list[BindingType]] = [bind("escape", "dismiss", "cancel", "jump.cancel", "Close without a jump")]

    def __init__(self, below: Screen[Any]) -> None:
        super().__init__()
        self._below = below
        self._goes: dict[str, Callable[[], object]] = {}  # by letter

    @classmethod
    def toggle(cls, app: App[Any]) -> None:
        """Show the letters of the screen on top, or remove them."""
        if isinstance(app.screen, cls):
            app.screen.dismiss()
        else:
            app.push_screen(cls(app.screen))

    def compose(self) -> ComposeResult:
        """Put letters on the panes of the strip, then on the visible widgets that can take the focus."""
        places = []
        for top in self._below.query(TopLines):
            for tab, start, _ in top.places:
                go: Callable[[], object] = partial(self._below.run_action, f"show_pane({tab.id!r})")
                places.append((top.region.offset + Offset(start, 0), go, "letter"))
        for widget in self._below.focus_chain:
            shown = self._below.find_widget(widget).visible_region
            if shown.area:
                places.append((shown.offset, partial(self._below.set_focus, widget), "letter -control"))
        for letter, (place, go, classes) in zip(LETTERS, places, strict=False):
            self._goes[letter] = go
            label = Static(letter, markup=False, classes=classes)
            label.styles.offset = place
            yield label

    def on_key(self, event: events.Key) -> None:
        go = self._goes.get(event.character or "")
        for binding in remapped(self._below):
            if binding.key == event.key and (binding.id or "").startswith("pane."):
                go = partial(self._below.run_action, binding.action)
        if go is not None:
            event.stop()
            self.dismiss()
            self.app.call_later(go)
