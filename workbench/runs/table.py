"""Table of runs, drawn line by line: lines out of view cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar, NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from trainer.runs.listing import RECENT, RunSummary
from workbench.kit.cells import fit
from workbench.run.alarms import SIGNS as LEVELS
from workbench.run.alarms import errors, state_text
from workbench.text import visible

SIGNS = {"training": "●", "done": "✓", "stopped": "■", "failed": "✖", "interrupted": "!"}
_LONGEST = 100  # characters of a cell, at most
_GUTTER = 2  # columns before the first: marked, or open on the screen
_GAP = 2


class Column(NamedTuple):
    """A column: `value` sorts the runs, and `text` is shown."""

    key: str
    heading: str
    value: Callable[[RunSummary], Any]  # None goes last
    text: Callable[[RunSummary, float], str]  # of the run and the time now, unix seconds
    descending: bool = False  # its usual order
    right: bool = False
    least: int = 0  # columns of the terminal to which it may be cut; 0: shown whole or not at all


COLUMNS = (
    Column("name", "run", lambda run: run.name, lambda run, _: visible(run.name), least=13),
    Column("state", "state", lambda run: run.state, lambda run, _: f"{state_sign(run)} {state_text(run)}", least=13),
    Column(
        "iteration",
        "iteration",
        lambda run: run.iteration,
        lambda run, _: f"{run.iteration}/{run.iterations}",
        descending=True,
        right=True,
    ),
    Column(
        "score",
        f"score last {RECENT}",
        lambda run: run.score,
        lambda run, _: _number(run.score, 3),
        descending=True,
        right=True,
    ),
    Column(
        "kl", f"KL last {RECENT}", lambda run: run.kl, lambda run, _: _number(run.kl, 2), descending=True, right=True
    ),
    Column("age", "age", lambda run: run.started, lambda run, now: age(run.started, now), descending=True, right=True),
    Column("model", "model", lambda run: run.model, lambda run, _: visible(run.model[:_LONGEST]), least=10),
)
_BY_KEY = {column.key: column for column in COLUMNS}
_MOST_WANTED = ("name", "state", "score", "iteration", "age", "kl", "model")  # a narrow table drops the last ones first


def state_sign(run: RunSummary) -> str:
    """Return the sign of the run's state: a warning if the run is done with an unresolved error."""
    return LEVELS["warning"] if is_alarmed(run) else SIGNS.get(run.state, "●")


def is_alarmed(run: RunSummary) -> bool:
    """Return whether the run is done with an unresolved error."""
    return run.state == "done" and bool(errors(run.alarms))


def age(started: float | None, now: float) -> str:
    """Return how long ago `started` was, in the largest whole unit: 40s, 5m, 3h, 12d; - if unknown."""
    if started is None:
        return "-"
    seconds = max(now - started, 0)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}" if seconds >= 10 * size else f"{int(seconds / size)}{unit}"
    return f"{int(seconds)}s"


def sorted_runs(runs: Sequence[RunSummary], key: str, *, reverse: bool = False) -> list[RunSummary]:
    """Return `runs` sorted by a column, in its usual order or reversed; runs without a value always come last."""
    column = _BY_KEY[key]
    known = [run for run in runs if column.value(run) is not None]
    known.sort(key=lambda run: run.name)
    known.sort(key=column.value, reverse=column.descending != reverse)
    return known + [run for run in runs if column.value(run) is None]


def column_widths(natural: dict[str, int], width: int) -> dict[str, int]:
    """Return the widths of the columns that fit into `width` columns of the terminal, in the table's order.

    natural: the width that each column would like. The least wanted are dropped first; the name always stays.
    """
    widths: dict[str, int] = {}
    left = width - _GUTTER
    for key in _MOST_WANTED:
        least = min(natural[key], _BY_KEY[key].least or natural[key])
        gap = _GAP if widths else 0
        if widths and gap + least > left:
            break
        widths[key] = min(least, left)
        left -= gap + widths[key]
    for key in widths:  # the columns that were cut get what is left
        more = min(natural[key] - widths[key], max(left, 0))
        widths[key] += more
        left -= more
    return {column.key: widths[column.key] for column in COLUMNS if column.key in widths}


class RunTable(ScrollView, can_focus=True, inherit_bindings=False):
    """Table of runs with a cursor, which stays on its run when others come, go or change their order."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "run-table--heading",
        "run-table--cursor",
        "run-table--muted",
        "run-table--alarmed",
        *(f"run-table--{state}" for state in SIGNS),
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", show=False, id="runs.up", tooltip="The run above"),
        Binding("down", "move(1)", "Down", show=False, id="runs.down", tooltip="The run below"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="runs.page-up", tooltip="A screenful up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="runs.page-down", tooltip="A screenful down"),
        Binding("home", "first", "First", show=False, id="runs.first", tooltip="The first run"),
        Binding("end", "last", "Last", show=False, id="runs.last", tooltip="The last run"),
    ]

    cursor: reactive[int] = reactive(0)

    class Highlighted(Message):
        """Posted when the cursor moves or the runs are shown again; there may be none."""

    class Opened(Message):
        """Posted when a run is double-clicked."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.sorted_by = "age"
        self.reversed = False
        self._runs: list[RunSummary] = []
        self._cells: list[dict[str, str]] = []
        self._natural = {column.key: 0 for column in COLUMNS}
        self._now = 0.0
        self._marked: Collection[str] = ()
        self._current = ""
        self._message = ""

    @property
    def runs(self) -> list[RunSummary]:
        """Runs in the order shown."""
        return self._runs

    @property
    def selected(self) -> RunSummary | None:
        """Run at the cursor; None without runs."""
        return self._runs[self.cursor] if self._runs else None

    @property
    def left_out(self) -> list[tuple[str, str]]:
        """Headings and values of the selected run in the columns without room."""
        shown = self._widths()
        return [
            (column.heading, self._cells[self.cursor][column.key])
            for column in COLUMNS
            if self._runs and column.key not in shown
        ]

    def show(self, runs: Sequence[RunSummary], now: float, *, message: str = "") -> None:
        """Show `runs` as of `now` (unix seconds). message: shown if there are none."""
        before = self.selected
        self._now, self._message = now, message
        self._runs = sorted_runs(runs, self.sorted_by, reverse=self.reversed)
        self._cells = [{column.key: column.text(run, now) for column in COLUMNS} for run in self._runs]
        self._natural = {
            column.key: max(
                cell_len(column.heading) + 1,  # with the sign of the order
                max((cell_len(cells[column.key]) for cells in self._cells), default=0),
            )
            for column in COLUMNS
        }
        self._fit()
        names = [run.name for run in self._runs]
        if before is not None and before.name in names:
            self.cursor = names.index(before.name)
        self.cursor = self.validate_cursor(self.cursor)
        self._scroll_to_cursor()
        self.post_message(self.Highlighted())
        self.refresh()

    def show_marks(self, marked: Collection[str], current: str) -> None:
        """Mark runs by name. current: the run that is open on the screen, empty for none."""
        if (marked, current) != (self._marked, self._current):
            self._marked, self._current = marked, current
            self.refresh()

    def sort_by(self, key: str) -> None:
        """Sort by a column; the same column again reverses the order."""
        self.reversed = key == self.sorted_by and not self.reversed
        self.sorted_by = key
        self.show(self._runs, self._now, message=self._message)

    def sort_by_next(self) -> None:
        """Sort by the next visible column to the right; the last is followed by the first."""
        keys = list(self._widths())
        place = keys.index(self.sorted_by) + 1 if self.sorted_by in keys else 0
        self.sort_by(keys[place % len(keys)])

    def validate_cursor(self, cursor: int) -> int:
        return max(min(cursor, len(self._runs) - 1), 0)

    def watch_cursor(self) -> None:
        self._scroll_to_cursor()
        self.post_message(self.Highlighted())
        self.refresh()

    def action_move(self, by: int) -> None:
        self.cursor += by

    def action_first(self) -> None:
        self.cursor = 0

    def action_last(self) -> None:
        self.cursor = len(self._runs) - 1

    def action_page(self, by: int) -> None:
        self.cursor += by * max(self.size.height - 1, 1)

    def on_resize(self) -> None:
        self._fit()
        self._scroll_to_cursor()

    def on_click(self, event: events.Click) -> None:
        if event.y == 0:
            left = _GUTTER
            for key, width in self._widths().items():
                if left <= event.x < left + width:
                    self.sort_by(key)
                    return
                left += width + _GAP
        elif (index := event.y - 1 + self.scroll_offset.y) < len(self._runs):
            self.cursor = index
            if event.chain == 2:
                self.post_message(self.Opened())

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        if y == 0:
            return self._heading().adjust_cell_length(width, self.rich_style)
        index = y - 1 + self.scroll_offset.y
        if not self._runs:
            lines = Content(self._message).wrap(max(width, 1))
            text = lines[y - 1].plain if y <= len(lines) else ""
            return Strip([Segment(text, self._style("muted"))]).adjust_cell_length(width, self.rich_style)
        if index >= len(self._runs):
            return Strip.blank(width, self.rich_style)
        at_cursor = index == self.cursor
        strip = self._row(index, self._style("cursor") if at_cursor else None)
        return strip.adjust_cell_length(width, self._style("cursor") if at_cursor else self.rich_style)

    def _heading(self) -> Strip:
        style, segments = self._style("heading"), [Segment(" " * _GUTTER, self.rich_style)]
        for key, width in self._widths().items():
            column = _BY_KEY[key]
            sign = ("▾" if column.descending != self.reversed else "▴") if key == self.sorted_by else ""
            name = column.heading if cell_len(column.heading + sign) <= width else column.heading.partition(" ")[0]
            text = sign + name if column.right else name + sign
            segments.append(Segment(fit(text, width, right=column.right) + " " * _GAP, style))
        return Strip(segments)

    def _row(self, index: int, style: Style | None) -> Strip:
        """Draw one run, in `style` or else in the styles of its cells."""
        run, cells = self._runs[index], self._cells[index]
        sign = "◆" if run.name in self._marked else "▸" if run.name == self._current else ""
        segments = [Segment(sign.ljust(_GUTTER), style or self.rich_style)]
        for key, width in self._widths().items():
            own = self._state_style(run) if key == "state" else self.rich_style
            text = fit(cells[key], width, right=_BY_KEY[key].right)
            segments.append(Segment(text, style or (self._style("muted") if key in ("age", "model") else own)))
            segments.append(Segment(" " * _GAP, style or self.rich_style))
        return Strip(segments)

    def _widths(self) -> dict[str, int]:
        return column_widths(self._natural, self.scrollable_content_region.width)

    def _state_style(self, run: RunSummary) -> Style:
        if is_alarmed(run):
            return self._style("alarmed")
        return self._style(run.state) if run.state in SIGNS else self.rich_style

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"run-table--{name}")

    def _fit(self) -> None:
        self.virtual_size = Size(self.scrollable_content_region.width, len(self._runs) + 1)

    def _scroll_to_cursor(self) -> None:
        seen, top = self.size.height - 1, self.scroll_offset.y
        if seen < 1:
            return
        wanted = min(max(top, self.cursor - seen + 1), self.cursor)
        if wanted != top:
            self.scroll_to(y=wanted, animate=False, force=True)


def _number(value: float | None, decimals: int) -> str:
    return "-" if value is None else f"{value:.{decimals}f}"
