"""The table of runs, with its columns and order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from rich.cells import cell_len
from textual import events
from textual.binding import BindingType

from trainer.runs.listing import RECENT, RunSummary
from workbench.kit.cursor_list import CursorList, cursor_bindings, under_cursor
from workbench.kit.glyphs import sparkline
from workbench.run.run_listing import SIGNS, Glance, age, is_alarmed, state_sign
from workbench.run.sentences import state_text
from workbench.text import Line, fit, fit_name, number, percent, visible

_LONGEST = 100  # characters of a cell, at most
_CURVE = 16  # columns
_GUTTER = 2  # columns before the first: marked, or open on the screen
_GAP = 2


class Column(NamedTuple):
    """A column: `value` sorts the runs, and `text` is shown."""

    key: str
    heading: str
    value: Callable[[RunSummary], Any]  # None goes last
    text: Callable[[RunSummary, float], str]  # of the run and the time now, unix seconds
    numeric: bool = False  # aligned to the right, and usually in descending order
    least: int = 0  # columns of the terminal to which it may be cut; 0: shown whole or not at all


COLUMNS = (
    Column("name", "run", lambda run: run.name, lambda run, _: visible(run.name), least=13),
    Column("state", "state", lambda run: run.state, lambda run, _: f"{state_sign(run)} {state_text(run)}", least=13),
    Column(
        "iteration",
        "iteration",
        lambda run: run.iteration,
        lambda run, _: f"{run.iteration}/{run.iterations}",
        numeric=True,
    ),
    Column("score", f"score last {RECENT}", lambda run: run.score, lambda run, _: number(run.score), numeric=True),
    Column("kl", f"KL last {RECENT}", lambda run: run.kl, lambda run, _: number(run.kl, 2), numeric=True),
    Column("curve", "score curve", lambda run: run.score, lambda run, _: "", least=_CURVE),
    Column("age", "age", lambda run: run.started, lambda run, now: age(run.started, now), numeric=True),
    Column("model", "model", lambda run: run.model, lambda run, _: visible(run.model[:_LONGEST]), least=10),
)
_BY_KEY = {column.key: column for column in COLUMNS}
_MOST_WANTED = ("name", "state", "score", "iteration", "age", "kl", "curve", "model")  # the last are dropped first
_AFTER_THE_NAME = ("kl", "curve", "model")  # are dropped before a name or a state is cut to less than this
_LONG_NAME = 24


def sorted_runs(runs: Sequence[RunSummary], key: str, *, reverse: bool = False) -> list[RunSummary]:
    """Return `runs` sorted by a column, in its usual order or reversed; runs without a value always come last."""
    column = _BY_KEY[key]
    known = [run for run in runs if column.value(run) is not None]
    known.sort(key=lambda run: run.name)
    known.sort(key=column.value, reverse=column.numeric != reverse)
    return known + [run for run in runs if column.value(run) is None]


def column_widths(natural: Mapping[str, int], width: int) -> dict[str, int]:
    """Return the widths of the columns that fit into `width` columns of the terminal, in the table's order.

    natural: the width that each column would like. The least wanted are dropped first; the name always stays.
    """
    widths: dict[str, int] = {}
    left = width - _GUTTER
    for key in _MOST_WANTED:
        if not natural.get(key):
            continue
        least = min(natural[key], _BY_KEY[key].least or natural[key])
        gap = _GAP if widths else 0
        cut = sum(max(min(natural[one], _LONG_NAME) - widths[one], 0) for one in ("name", "state") if one in widths)
        if widths and gap + least + cut * (key in _AFTER_THE_NAME) > left:
            break
        widths[key] = min(least, left)
        left -= gap + widths[key]
    for key in sorted(widths, key=lambda key: key == "name"):  # cut ones get what is left, and a name is cut first
        more = min(natural[key] - widths[key], max(left, 0))
        widths[key] += more
        left -= more
    return {column.key: widths[column.key] for column in COLUMNS if column.key in widths}


class RunTable(CursorList[RunSummary]):
    """Table of runs with a cursor, which stays on its run when others come, go or change their order.

    Posts `Moved` also when the runs are shown again; there may be none.
    """

    CSS_NAME = "run-table"
    HEADER_HEIGHT = 1
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"run-table--{role}" for role in ("heading", "cursor", "muted", "curve", "alarmed", *SIGNS)
    }
    BINDINGS: ClassVar[list[BindingType]] = cursor_bindings("runs", "run")
    sorted_by = "age"
    reversed = False
    _cells: Sequence[dict[str, str]] = ()
    _natural: Mapping[str, int] = dict.fromkeys(_BY_KEY, 0)
    _now = 0.0
    _marked: Collection[str] = ()
    _current = ""
    _glances: Mapping[str, Glance] = {}  # of the runs, by name

    @property
    def left_out(self) -> list[tuple[str, str]]:
        """Headings and values of the selected run in the columns without room."""
        shown = self._widths()
        return [
            (column.heading, self._cells[self.cursor][column.key])
            for column in COLUMNS
            if self.items and column.key not in shown and column.key != "curve"
        ]

    def show(self, runs: Sequence[RunSummary], now: float, glances: Mapping[str, Glance], *, message: str = "") -> None:
        """Show `runs` as of `now`, unix seconds. glances: by name. message: shown if there are none."""
        before = self.selected
        self._glances = glances
        self._now, self._message = now, message
        self.items = sorted_runs(runs, self.sorted_by, reverse=self.reversed)
        self._cells = [{column.key: column.text(run, now) for column in COLUMNS} for run in self.items]
        self._natural = {
            column.key: max(
                cell_len(column.heading) + 1,  # with the sign of the order
                max((cell_len(cells[column.key]) for cells in self._cells), default=0),
            )
            for column in COLUMNS
        } | {"curve": _CURVE}
        places = {run.name: place for place, run in enumerate(self.items)}
        self.put_cursor(places.get(before.name, self.cursor) if before else self.cursor)
        self.post_message(self.Moved())

    def show_marks(self, marked: Collection[str], current: str) -> None:
        """Mark runs by name. current: the run that is open on the screen, empty for none."""
        if (marked, current) != (self._marked, self._current):
            self._marked, self._current = marked, current
            self.refresh()

    def sort_by(self, key: str = "") -> None:
        """Sort by a column, by default by the visible one to the right; the same column again reverses the order."""
        if not key:
            keys = [key for key in self._widths() if key != "curve"]
            key = keys[(keys.index(self.sorted_by) + 1) % len(keys) if self.sorted_by in keys else 0]
        self.reversed = key == self.sorted_by and not self.reversed
        self.sorted_by = key
        self.show(self.items, self._now, self._glances, message=self._message)

    def on_click(self, event: events.Click) -> None:
        """Sort by the column whose heading is clicked."""
        left = _GUTTER
        for key, width in self._widths().items():
            if event.y == 0 and left <= event.x < left + width and self.text_selection is None:
                self.sort_by("score" if key == "curve" else key)
                return
            left += width + _GAP

    def header_line(self, width: int) -> Line:
        line: Line = [(" " * _GUTTER, "")]
        for key, columns in self._widths().items() if self.items else ():
            column = _BY_KEY[key]
            sign = ("▾" if column.numeric != self.reversed else "▴") if key == self.sorted_by else ""
            name = column.heading if cell_len(column.heading + sign) <= columns else column.heading.partition(" ")[0]
            text = sign + name if column.numeric else name + sign
            line.append((fit(text, columns, right=column.numeric) + " " * _GAP, "heading"))
        return line

    def item_line(self, index: int, line: int, width: int) -> Line:
        run, cells = self.items[index], self._cells[index]
        sign = "◆" if run.name in self._marked else "▸" if run.name == self._current else ""
        state = "alarmed" if is_alarmed(run) else run.state if run.state in SIGNS else ""
        roles = {"state": state, "age": "muted", "model": "muted", "curve": "curve"}
        pieces: Line = [(sign.ljust(_GUTTER), "")]
        for key, columns in self._widths().items():
            glance = self._glances.get(run.name)
            curve = sparkline(glance.scores, columns) if glance else ""
            if glance and glance.held_out:
                curve = f"{percent(glance.held_out.accuracy)} held out"
            shown = cells[key] if key != "curve" else curve
            text = fit_name(shown, columns) if key == "name" else fit(shown, columns, right=_BY_KEY[key].numeric)
            pieces += [(text, roles.get(key, "")), (" " * _GAP, "")]
        return under_cursor(pieces, width) if index == self.cursor and self.has_focus else pieces

    def _widths(self) -> dict[str, int]:
        return column_widths(self._natural, self.scrollable_content_region.width)
