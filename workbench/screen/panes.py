"""Panes of the main screen: which of them a terminal of some size shows, and which has the focus."""

from __future__ import annotations

from collections.abc import Callable

from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static

from workbench.kit.pane import Pane
from workbench.kit.pane_strip import PaneStrip
from workbench.run.supervisor import Supervisor

SMALLEST = (60, 20)  # columns, lines: below, nothing useful can be read
SIDE_BY_SIDE = (116, 24)
EVERYTHING = (180, 48)

DASHBOARD = ("config", "training", "samples")
EDITING = ("config", "training")
ALONE = ("home", "label", "reward-model")  # they need the whole width, and nothing should distract a labeller
DRAWER = ("log",)  # below the dashboard if there is room for all


def arrange(width: int, height: int, current: str, *, zoomed: bool = False) -> tuple[str, ...]:
    """Return the panes to show on `width` columns by `height` lines, when the user is at the pane `current`.

    Empty if the terminal is too small. On a small terminal or when zoomed, only the current pane is shown. Home and the
    panes for labels and reward models are always shown alone. Otherwise configuration, charts and samples are side by
    side, without the samples while the user is at the configuration. A large terminal shows all three, and the log
    below them, higher when the user is there; a smaller one shows the log alone.
    """
    if width < SMALLEST[0] or height < SMALLEST[1]:
        return ()
    if zoomed or current in ALONE or width < SIDE_BY_SIDE[0] or height < SIDE_BY_SIDE[1]:
        return (current,)
    if width >= EVERYTHING[0] and height >= EVERYTHING[1]:
        return DASHBOARD + DRAWER
    if current == "config":
        return EDITING
    return DASHBOARD if current in DASHBOARD else (current,)


class Panes:
    """Panes of `screen`, shown as the terminal's size allows; the current one is shown if any fits.

    settle: removes the errors about a pane that the user leaves.
    """

    def __init__(
        self, screen: Screen[None], supervisor: Supervisor, settle: Callable[[str], None], current: str
    ) -> None:
        self.current = current
        self._screen = screen
        self._supervisor = supervisor
        self._settle = settle
        self._zoomed = False
        self._focused: Widget | None = None  # before the terminal became too small for any pane

    def go_to(self, name: str) -> None:
        """Show a pane, and give it the focus."""
        self._move_to(name)
        self._arrange()
        pane = self._pane(name)
        pane.update_run(self._supervisor.view)
        pane.take_focus()

    def zoom(self) -> None:
        """Give the current pane the whole terminal, or undo that."""
        self._zoomed = not self._zoomed
        self.go_to(self.current)

    def follow(self, widget: Widget) -> None:
        """Make the pane of `widget`, which has the focus now, the current one, however the focus got there."""
        if widget is not self._screen.focused:
            return  # the focus has moved on since
        pane = next((node for node in widget.ancestors_with_self if isinstance(node, Pane)), None)
        if pane is not None and pane.id:
            self._move_to(pane.id)

    def resize(self) -> None:
        """Arrange the panes again; the widget with the focus before all of them were hidden gets it back."""
        focused = self._screen.focused
        self._arrange()
        if focused is not None and not any(pane.display for pane in self._screen.query(Pane)):
            self._focused = focused  # nothing can be focused meanwhile
        elif self._focused is not None and self._pane(self.current).display:
            before, self._focused = self._focused, None
            if before.is_attached and before.focusable:
                before.focus()
            else:
                self._pane(self.current).take_focus()

    def _pane(self, name: str) -> Pane:
        return self._screen.query_one(f"#{name}", Pane)

    def _move_to(self, name: str) -> None:
        before, self.current = self.current, name
        self._screen.query_one(PaneStrip).current = name
        if before != name:
            self._settle(before)

    def _arrange(self) -> None:
        screen = self._screen
        width, height = screen.app.size
        shown = arrange(width, height, self.current, zoomed=self._zoomed)
        for pane in screen.query(Pane):
            was, pane.display = pane.display, pane.id in shown
            if pane.display and not was:
                pane.update_run(self._supervisor.view)
        config, is_wide = self._pane("config"), self.current == "config" and "training" in shown
        if config.has_class("-wide") != is_wide:  # half of the dashboard, or its usual share
            config.set_class(is_wide, "-wide", update=False)  # without restyling all that is in the pane
            screen.app.stylesheet.apply(config)
        screen.query_one("#top").display = bool({*shown} & {*DASHBOARD})
        drawer = screen.query_one("#bottom")
        drawer.display = bool({*shown} & {*DRAWER})
        drawer.set_class(self.current in DASHBOARD, "-low")
        too_small = screen.query_one("#too-small", Static)
        too_small.display = not shown
        too_small.update(f"{width} x {height} is too small: enlarge the terminal to {SMALLEST[0]} x {SMALLEST[1]}")
