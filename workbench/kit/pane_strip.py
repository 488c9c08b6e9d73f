"""The top of the main screen: a strip with the names of all panes, and the state of the run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.containers import Container
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from workbench.kit.keys import keys_of
from workbench.kit.pane import Badge, MountedWhole, Pane
from workbench.kit.status_line import StatusLine
from workbench.run.view import RunView

SHARED = 160
"""Columns from which the strip and the state of a run share one line: both then show all that they have."""

_IDLE = 14  # columns that stay free for the state while there is no run
_STYLES = {"": "$text-accent", "warning": "$text-warning", "error": "$text-error"}


class Tab(NamedTuple):
    """A pane in the strip."""

    id: str
    title: str
    key: str
    badge: Badge

    def name(self, most: int) -> str:
        """Return the title in at most `most` columns: its first word if that fits, else its beginning."""
        if cell_len(self.title) <= most:
            return self.title
        return self.title.split()[0][:most]

    def pieces(self, most: int, *, keys: bool) -> list[tuple[str, str]]:
        """Return the texts and styles of the tab, without the mark before it and the gap after it."""
        badge = f"·{self.badge.text}" if self.badge.text else ""
        key = f" {self.key}" if keys and self.key else ""
        return [(self.name(most), ""), (badge, _STYLES[self.badge.level]), (key, "$text-muted")]


def tabs_within(tabs: Sequence[Tab], width: int) -> tuple[int, bool]:
    """Return how many columns each name may have, and whether the keys are shown, so that all tabs fit `width`.

    The keys go first, then the ends of the longest names; at least one letter of each stays.
    """
    longest = max((cell_len(tab.title) for tab in tabs), default=1)
    if columns(tabs, longest, keys=True) <= width:
        return longest, True
    for most in range(longest, 1, -1):
        if columns(tabs, most, keys=False) <= width:
            return most, False
    return 1, False


def columns(tabs: Sequence[Tab], most: int, *, keys: bool) -> int:
    """Return the columns of all tabs, with the mark before each and the gap after it."""
    return sum(2 + sum(cell_len(text) for text, _ in tab.pieces(most, keys=keys)) for tab in tabs)


class PaneStrip(Widget):
    """All panes by name: the current one is marked, a badge says where something wants attention.

    A click on a name goes to its pane. The panes are those of the screen, in their order.
    """

    ALLOW_SELECT = False

    class Chosen(Message):
        """A pane was clicked."""

        def __init__(self, pane: str) -> None:
            super().__init__()
            self.pane = pane

    current: reactive[str] = reactive("")
    tabs: reactive[tuple[Tab, ...]] = reactive((), layout=True)
    beside = 0  # columns that the state of the run has in the same line

    def follow(self, panes: Iterable[Pane]) -> None:
        """Show these panes and their badges, from now on."""
        for pane in panes:
            self.watch(pane, "badge", self._read, init=False)
        self._read()

    def _read(self) -> None:
        keys = keys_of(self.screen)
        self.tabs = tuple(
            Tab(pane.id or "", pane.TITLE, keys.get(f"pane.{pane.id}", ""), pane.badge)
            for pane in self.screen.query(Pane)
        )

    def get_content_width(self, container: Size, viewport: Size) -> int:
        most, keys = tabs_within(self.tabs, container.width - self.beside)
        return columns(self.tabs, most, keys=keys)

    def places(self) -> list[tuple[Tab, int, int]]:
        """Return each tab with the columns where it begins and ends."""
        most, keys = tabs_within(self.tabs, self.size.width)
        places, start = [], 0
        for tab in self.tabs:
            end = start + columns([tab], most, keys=keys)
            places.append((tab, start, end))
            start = end
        return places

    def render(self) -> Content:
        most, keys = tabs_within(self.tabs, self.size.width)
        drawn: list[Content] = []
        for tab in self.tabs:
            here = tab.id == self.current
            text = Content.assemble("▸" if here else " ", *tab.pieces(most, keys=keys), " ")
            drawn.append(Content.styled(text.plain, "bold reverse $text-primary") if here else text)
        return Content("").join(drawn)

    def on_click(self, event: events.Click) -> None:
        if (tab := self._at(event.x)) is not None:
            self.post_message(self.Chosen(tab.id))

    def on_mouse_move(self, event: events.MouseMove) -> None:
        tab = self._at(event.x)
        self.tooltip = f"{tab.title} {tab.key}" if tab else None

    def _at(self, x: int) -> Tab | None:
        return next((tab for tab, start, end in self.places() if start <= x < end), None)


class TopLines(MountedWhole, Container):
    """The strip and the state of the run: in one line where both have room, else in two."""

    def compose(self) -> ComposeResult:
        yield PaneStrip(id="strip")
        yield StatusLine(id="status")

    def on_mount(self) -> None:
        self._idle = True
        self._arrange()

    def on_resize(self) -> None:
        self._arrange()

    def show_run(self, view: RunView, *, note: str = "") -> None:
        """Show the state of the run. note: shown instead of the state's name, such as `stopping`."""
        line = self.query_one(StatusLine)
        line.show_run(view, note=note)
        self._idle = line.is_idle
        self._arrange()

    def _arrange(self) -> None:
        strip, width = self.query_one(PaneStrip), self.app.size.width
        shared = self._idle or width >= SHARED
        beside = 0 if not shared else _IDLE if self._idle else width // 2
        if beside != strip.beside:
            strip.beside = beside
            strip.refresh(layout=True)
        if shared != self.has_class("-shared"):
            self.set_class(shared, "-shared")
