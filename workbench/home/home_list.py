"""List of what can be done from Home, and below it the runs with their curves in small."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from rich.cells import cell_len
from textual import events
from textual.binding import BindingType

from trainer.runs.listing import PPO
from workbench.columns import fit, fit_name, fit_start
from workbench.kit.cursor_list import CursorList, cursor_bindings, under_cursor
from workbench.kit.glyphs import sparkline
from workbench.kit.lines import Line
from workbench.numbers import number
from workbench.run.glance import Glance
from workbench.run.run_listing import SIGNS, age, is_alarmed, state_sign
from workbench.run.sentences import state_text
from workbench.text import visible

_GUTTER = 2
_GAP = 2
_NUMBER = 6  # columns of a score and of a KL
_AGE = 4
_SPARK = (4, 32)  # columns of a curve, at least and at most
_NAME = (10, 30)
_STATE = 24  # columns, at most


class Choice(NamedTuple):
    """Something to do. what: its name for the program. title, text: safe to print.

    key: the name of its binding, without `home.`; in the list, the key.
    """

    key: str
    what: str
    title: str
    text: str


class RunRow(NamedTuple):
    """A run in the list. place: "here" or "elsewhere" while it trains, else empty."""

    glance: Glance
    place: str

    @property
    def state(self) -> str:
        """State of the run with its sign, and where it trains."""
        run = self.glance.run
        if not self.place:
            done = f" {run.iteration}/{run.iterations}" if run.kind == PPO and run.iterations else ""
            return f"{state_sign(run)} {state_text(run)}{done}"
        return f"{SIGNS['training']} {self.place} {run.iteration}/{run.iterations}"


Item = Choice | RunRow | str  # a text cannot be chosen; "runs" is the heading of the runs
RUNS = "runs"


class Widths(NamedTuple):
    """Columns of the terminal for each part of a run's line; a curve of 0 is left out."""

    name: int
    spark: int
    state: int


def widths_for(rows: Sequence[RunRow], width: int) -> Widths:
    """Share `width` columns among the parts of the lines of runs: the curves get what is left."""
    state = min(max((cell_len(row.state) for row in rows), default=0), _STATE)
    name = min(max((cell_len(visible(row.glance.run.name)) for row in rows), default=0), _NAME[1])
    fixed = _GUTTER + 2 * (_GAP + _NUMBER) + _GAP + state + _GAP + _AGE
    left = width - fixed - 2 - 2 * _SPARK[0]  # each curve has a column before it
    if left < min(name, _NAME[0]):
        return Widths(max(min(name, width - fixed), 1), 0, state)
    name = min(name, left)
    spark = min((width - fixed - 2 - name) // 2, _SPARK[1])
    return Widths(name, spark, state)


def shrunk(values: Sequence[float], width: int) -> list[float]:
    """Return the means of at most `width` equal parts of `values`; NaN where a part has no finite value."""
    count = min(len(values), width)
    means = []
    for part in range(count):
        finite = [
            v for v in values[part * len(values) // count : (part + 1) * len(values) // count] if math.isfinite(v)
        ]
        means.append(math.fsum(value / len(finite) for value in finite) if finite else math.nan)
    return means


class HomeList(CursorList[Item]):
    """The choices and the runs, with one cursor over both."""

    CSS_NAME = "home-list"
    HEADER_HEIGHT = 1
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"home-list--{role}" for role in ("heading", "key", "title", "cursor", "muted", "curve", "alarmed", *SIGNS)
    }
    BINDINGS: ClassVar[list[BindingType]] = cursor_bindings("home", "line")
    _now = 0.0
    _widths: Widths | None = None
    _title = 0  # columns of the longest title of a choice

    @property
    def lines(self) -> int:
        """Number of lines that the whole list takes."""
        return self.HEADER_HEIGHT + len(self._items)

    def show(self, choices: Sequence[Choice], rows: Sequence[RunRow], now: float, *, note: str = "") -> None:
        """Show the choices and the runs as of `now`, unix seconds. note: in place of the runs, if there are none."""
        before = self.selected
        self._now = now
        self._title = max((len(choice.title) for choice in choices), default=0)
        self._items = [*choices, *([""] if choices else []), *([RUNS, *rows] if rows else [note])]
        self._widths = None
        places = {_identity(item): place for place, item in enumerate(self._items) if not isinstance(item, str)}
        known = before is not None and not isinstance(before, str)
        self.put_cursor(places.get(_identity(before), self.cursor) if known else 0)
        self.post_message(self.Moved())

    def validate_cursor(self, cursor: int) -> int:
        """Return the place nearest to `cursor` that can be chosen, beyond it if the cursor is on its way there."""
        cursor = max(min(cursor, len(self._items) - 1), 0)
        step = 1 if cursor >= self.cursor else -1
        place: int
        for place in (*self._towards(cursor, step), *self._towards(cursor, -step)):
            if not isinstance(self._items[place], str):
                return place
        return cursor

    def _towards(self, cursor: int, step: int) -> range:
        return range(cursor, len(self._items) if step > 0 else -1, step)

    def on_click(self, event: events.Click) -> None:
        index = event.y - self.HEADER_HEIGHT + self.scroll_offset.y
        if 0 <= index < len(self._items) and not isinstance(self._items[index], str):
            super().on_click(event)

    def click_item(self, event: events.Click, *, again: bool) -> None:
        if event.chain == 2 or isinstance(self.selected, Choice):  # a choice looks like a button
            self.post_message(self.Opened())

    def on_resize(self) -> None:
        self._widths = None
        super().on_resize()

    def header_line(self, width: int) -> Line:
        return [(fit_start("  What do you want to do?", width), "heading")]

    def item_line(self, index: int, line: int, width: int) -> Line:
        item = self._items[index]
        if isinstance(item, str):
            return self._heading(width) if item == RUNS else [(fit_start(f"  {item}", width), "muted")]
        pieces = self._choice_line(item, width) if isinstance(item, Choice) else self._run_line(item, width)
        return under_cursor(pieces, width) if index == self.cursor else pieces

    def _choice_line(self, choice: Choice, width: int) -> Line:
        title = f"{choice.title:{self._title}}"
        room = width - len(title) - 2 * _GAP - _GUTTER - 1
        pieces: Line = [("  ", ""), (choice.key, "key"), ("  ", ""), (title, "title"), ("  ", "")]
        return [*pieces, (fit_start(choice.text, room), "muted")]

    def _heading(self, width: int) -> Line:
        widths = self._for(width)
        chart = f"{'score':>{_NUMBER}}".ljust(_NUMBER + widths.spark + bool(widths.spark))
        other = f"{'KL':>{_NUMBER}}".ljust(_NUMBER + widths.spark + bool(widths.spark))
        text = f"  {'Runs':{widths.name}}  {chart}  {other}  {'state':{widths.state}}  {'age':>{_AGE}}"
        return [(fit_start(text, width), "heading")]

    def _run_line(self, row: RunRow, width: int) -> Line:
        widths, glance = self._for(width), row.glance
        run = glance.run
        pieces: Line = [("  ", ""), (fit_name(visible(run.name), widths.name), "title"), ("  ", "")]
        if glance.result:
            room = 2 * (_NUMBER + widths.spark + bool(widths.spark)) + _GAP
            pieces.append((fit(glance.result, room), ""))
        else:
            for value, digits, values in ((run.score, 3, glance.scores), (run.kl, 2, glance.kls)):
                if pieces[-1][1] == "curve":
                    pieces.append(("  ", ""))
                pieces.append((fit(number(value, digits, width=_NUMBER), _NUMBER, right=True), ""))
                curve = sparkline(shrunk(values, widths.spark), widths.spark) if widths.spark else ""
                pieces.append((" " * bool(widths.spark) + curve.ljust(widths.spark), "curve"))
        state = "alarmed" if is_alarmed(run) else run.state if run.state in SIGNS else ""
        pieces += [("  ", ""), (fit(row.state, widths.state), state)]
        return [*pieces, ("  ", ""), (fit(age(run.started, self._now), _AGE, right=True), "muted")]

    def _for(self, width: int) -> Widths:
        if self._widths is None:
            self._widths = widths_for([item for item in self._items if isinstance(item, RunRow)], width)
        return self._widths


def _identity(item: Item | None) -> object:
    return item.what if isinstance(item, Choice) else item.glance.run.name if isinstance(item, RunRow) else None
