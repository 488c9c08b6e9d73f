"""Jump mode: a letter on every pane of the strip and on every widget that can take the focus; the letter goes there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Offset
from textual.screen import Screen
from textual.widgets import Static

from workbench.kit.dialog import Dialog
from workbench.kit.keys import remapped
from workbench.kit.pane_strip import TopLines

LETTERS = "asdfghjklwertyuiopzxcvbnm1234567890"  # without q, which quits


class Target(NamedTuple):
    """A place to jump to."""

    place: Offset
    go: Callable[[], object]
    is_control: bool  # its letter has room around it


def targets(screen: Screen[Any]) -> list[Target]:
    """Return the panes of the strip, then the visible widgets that can take the focus."""
    found = []
    for top in screen.query(TopLines):
        for tab, start, _ in top.places:
            go = partial(screen.run_action, f"show_pane({tab.id!r})")
            found.append(Target(top.region.offset + Offset(start, 0), go, is_control=False))
    for widget in screen.focus_chain:
        shown = screen.find_widget(widget).visible_region
        if shown.area:
            found.append(Target(shown.offset, partial(screen.set_focus, widget), is_control=True))
    return found


class JumpScreen(Dialog[Callable[[], object]]):
    """Overlay with a letter on each target, which goes there; the keys of the panes go to them as ever."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "cancel", id="jump.cancel", tooltip="Close without a jump"),
    ]

    def __init__(self, below: Screen[Any]) -> None:
        super().__init__()
        self._below = below
        self._targets = targets(below)[: len(LETTERS)]

    @classmethod
    def toggle(cls, app: App[Any]) -> None:
        """Show the letters of the screen on top, or remove them."""
        if isinstance(app.screen, cls):
            app.screen.dismiss()
            return

        def jump(go: Callable[[], object] | None) -> None:
            if go is not None:
                app.call_later(go)

        app.push_screen(cls(app.screen), jump)

    def compose(self) -> ComposeResult:
        for letter, target in zip(LETTERS, self._targets, strict=False):
            label = Static(letter, markup=False, classes=f"letter{' -control' if target.is_control else ''}")
            label.styles.offset = target.place
            yield label

    def on_key(self, event: events.Key) -> None:
        chosen = LETTERS.find(event.character or " ")
        if 0 <= chosen < len(self._targets):
            event.stop()
            self.dismiss(self._targets[chosen].go)
        for binding in remapped(self._below):
            if binding.key == event.key and (binding.id or "").startswith("pane."):
                event.stop()
                self.dismiss(partial(self._below.run_action, binding.action))
