"""The loop at the top of Home: five stations, from prompts to a policy that is trained on people's judgement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import ClassVar, NamedTuple

from rich.cells import cell_len
from textual import events
from textual.binding import BindingType

from workbench.kit.cursor_list import CursorList
from workbench.kit.keys import hidden_key
from workbench.run.run_listing import Workspace
from workbench.text import Line, fit_start, padded, plain

_STATIONS = (  # names, columns on a terminal of 80, and what they are
    ("Prompts", 16, "What the policy answers; the quickstart brings its own."),
    ("Policy", 17, "PPO trains a small model; a reward scores each response."),
    ("Labels", 12, "You read two responses and say which is better."),
    ("Reward model", 17, "It learns from your labels to score as you would."),
    ("Policy on it", 14, "PPO again with that reward; then label what it writes."),
)
_INDENT = 2
_MOST_WIDER = 12  # columns that each station gets on a wide terminal


class Station(NamedTuple):
    """A station of the loop: two short lines on how far it is, and what its key does. Its texts are safe to print.

    key: the name of its binding, without `home.`; in the widget, the key. what: the action's name for the program.
    """

    key: str
    state: str
    detail: str
    what: str
    title: str
    text: str
    reached: bool


class HomeFacts(NamedTuple):
    """Content of Home besides the runs. following: the next station's place."""

    stations: Sequence[Station] = ()
    following: int = 0
    machine: str = ""


FactsReader = Callable[[], Callable[[Workspace | None], HomeFacts]]
"""Returns a function that reads the facts on a thread; for None in place of the runs, it reads no file."""


def _starts(width: int) -> list[int]:
    """Return the columns at which the stations begin, and the last one ends."""
    wider = (width - _INDENT - sum(columns for _, columns, _ in _STATIONS)) // len(_STATIONS)
    columns = [columns + min(wider, _MOST_WIDER) if wider >= 0 else len(name) + 3 for name, columns, _ in _STATIONS]
    return list(accumulate(columns, initial=_INDENT if wider >= 0 else 0))


def loop_lines(stations: Sequence[Station], following: int, cursor: int, width: int, *, focused: bool) -> list[Line]:
    """Return the stations in a row with the way between them, two lines of their states, and the action at `cursor`.

    The way to the station that comes next is thick.
    """
    starts = _starts(width)
    lines: list[Line] = [[(" " * starts[0], "")] for _ in range(3)]
    for place, (station, (start, end)) in enumerate(zip(stations, pairwise(starts), strict=True)):
        columns = min(end, width) - start
        role = "next" if place == following else "title" if station.reached else "muted"
        name, rail = _STATIONS[place][0], "━" if place < following else "─"
        room = columns - cell_len(f"{station.key} {name}") if place + 1 < len(stations) else 0
        way = f" {rail * (room - 3)}▶ " if room > 2 else " " * room
        head: Line = [(station.key, "key"), (" ", ""), (name, "lit" if place == following else role)]
        lines[0] += [(plain(head), "cursor")] if focused and place == cursor else head
        lines[0].append((way, "title" if place < following else "muted"))
        lines[1].append((padded(fit_start(station.state, columns - 1), columns), role))
        lines[2].append((padded(fit_start(station.detail, columns - 1), columns), "muted"))
    chosen, sign = stations[cursor], "Next" if cursor == following else stations[cursor].key
    action: Line = [(f"{' ' * _INDENT}{sign:6}", "muted"), (f"{chosen.title}  ", "next")]
    action.append((fit_start(chosen.text, width - cell_len(plain(action))), "muted"))
    return [*lines, [], action]


def explanation(stations: Sequence[Station], width: int, height: int) -> list[Line]:
    """Return what the stations are, for somebody who sees them for the first time."""
    named = max(len(name) for name, _, _ in _STATIONS) + 4
    return [
        [(padded(f"{station.key} {name}", named), "strong"), (fit_start(about, width - named), "muted")]
        for station, (name, _, about) in zip(stations, _STATIONS, strict=False)
    ][:height]


class HomeLoop(CursorList[Station]):
    """The stations of the loop, which look and work like buttons in a row."""

    CSS_NAME = "home-loop"
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"home-loop--{role}" for role in ("key", "title", "next", "lit", "cursor", "muted")
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        hidden_key("left", "move(-1)", "left", "home.left", "Go to the station before"),
        hidden_key("right", "move(1)", "right", "home.right", "Go to the station after"),
        hidden_key("down", "leave", "runs", "home.down", "Go to the runs"),
    ]
    following = 0

    def show(self, stations: Sequence[Station], following: int) -> None:
        """Show the stations; a cursor that is on the one that comes next moves on with it."""
        cursor = self.cursor if self.items and self.cursor != self.following else following
        self.items, self.following = stations, following
        self.put_cursor(cursor)

    def content_line(self, index: int) -> Line | None:
        width = self.scrollable_content_region.width
        lines = loop_lines(self.items, self.following, self.cursor, width, focused=self.has_focus) if self.items else []
        return lines[index] if index < len(lines) else None

    def watch_cursor(self, before: int, after: int) -> None:
        self.refresh()

    def action_leave(self) -> None:
        self.post_message(self.Left(1))

    def on_click(self, event: events.Click) -> None:
        """Do what the station under the mouse is for, or the action below the stations."""
        event.prevent_default()  # the items of other lists lie one below the other
        if self.text_selection is not None or not self.items or event.y > 4:
            return
        if event.y < 3:
            self.cursor = sum(start <= event.x for start in _starts(self.size.width)) - 1
        self.post_message(self.Opened())
