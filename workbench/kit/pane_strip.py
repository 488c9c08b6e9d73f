"""The top of the main screen: a strip with the names of all panes, and the state of the run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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

from trainer.events import Alarm
from workbench.kit.keys import keys_of
from workbench.kit.pane import Badge, MountedWhole, Pane
from workbench.numbers import duration, gigabytes
from workbench.run.sentences import SIGNS, errors, level_sign, title, urgent_first
from workbench.run.view import STARTING, RunView
from workbench.text import packed, visible

_GAP = "   "
_BAR = 16  # columns of the phase's progress
_SIGNS = {
    "loading": "◌",
    "training": "●",
    "evaluating": "●",
    "saving": "●",
    "paused": "‖",
    "done": "✓",
    "stopped": "■",
    "failed": "✖",
}
_UNKNOWN = "●"  # sign of a state that only a newer version knows
_STATE_STYLES = {"paused": "$text-warning", "failed": "$text-error", "done": "$text-success", "stopped": "$text-muted"}

NO_RUN = [Content.styled("no run yet", "$text-muted")]
"""The pieces while there is no run."""


class StatusLine(Widget):
    """The line that always shows which run this is and what it is doing."""

    _pieces: Sequence[Content] = (Content.assemble(("ppo-workbench", "bold")),)

    def show_run(self, view: RunView, *, note: str = "") -> None:
        """Show the state of the run. note: shown instead of the state's name, such as `stopping`."""
        pieces = status_pieces(view, note=note)
        if pieces != self._pieces:
            self._pieces = pieces
            self.refresh()

    @property
    def is_idle(self) -> bool:
        """True while there is no run to show."""
        return self._pieces == NO_RUN

    def render(self) -> Content:
        """Return as many pieces as fit, always including the first."""
        return fitted(self._pieces, self.size.width - 2)


def status_pieces(view: RunView, *, note: str = "") -> list[Content]:
    """Return the pieces of the line, most important first."""
    if view.started is None and view.state != "failed" and not view.is_starting and not note and not view.phase:
        return NO_RUN
    name = visible(view.started.name) if view.started else "new run"
    wrong = errors(view.active_alarms)
    sign, style = _SIGNS.get(view.state, _UNKNOWN), _STATE_STYLES.get(view.state, "$text-accent")
    words = note or view.state_text
    if note == STARTING:
        sign, style = _SIGNS["loading"], "$text-accent"
    if wrong and view.state == "done":
        sign, style = SIGNS["warning"], "$text-warning"
        words += "" if view.alarms else f", {visible(wrong)}"
    pieces = [Content.assemble((name, "bold"), "  ", Content.styled(f"{sign} {words}", style))]
    if view.alarms:
        pieces.append(_alarms(view.alarms))
    if view.total:
        pieces.append(Content(f"iteration {view.iteration}/{view.total}"))
    if view.phase is not None and not view.is_starting:
        done, total = view.phase.done, view.phase.total
        full = round(_BAR * min(max(done / total, 0), 1)) if total > 0 else 0
        bar = ("━" * full, "$accent"), ("─" * (_BAR - full), "$text-disabled")
        pieces.append(Content.assemble(f"{visible(view.phase.phase)} ", *bar))
    if (last := view.last) is not None:
        if view.ended is None:
            pieces.append(Content(f"ETA {duration(view.seconds_left())}"))
        pieces.append(Content(f"{last.tokens_per_second:.0f} tok/s"))
        pieces.append(Content(gigabytes(last.memory_bytes)))
    return pieces


def fitted(pieces: Sequence[Content], width: int) -> Content:
    """Join as many of the first pieces as fit into `width` columns."""
    shown = packed(pieces, width, len(_GAP), lambda piece: piece.cell_length)[0]
    return Content(_GAP).join(shown).truncate(max(width, 1), ellipsis=True)


def _alarms(alarms: Sequence[Alarm]) -> Content:
    """Return the title of the most severe alarm, and how many more there are."""
    worst = urgent_first(alarms)[0]
    words = visible(title(worst.code)) + (f" and {len(alarms) - 1} more" if len(alarms) > 1 else "")
    style = "$text-error" if worst.level == "error" else "$text-warning"
    return Content.styled(f"{level_sign(worst.level)} {words}", style)


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

    @dataclass
    class Chosen(Message):
        """A pane was clicked."""

        pane: str

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
