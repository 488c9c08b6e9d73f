"""Events of a run: its alarms, decisions, settings and evaluations by severity, and its checkpoints in one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import MouseScrollDown, MouseScrollUp

from workbench.kit.drawing import Drawn, component_classes, rule
from workbench.run.sentences import SIGNS as LEVELS
from workbench.run.view import Mark, MarkKind
from workbench.text import Line, Piece, fit_start, padded, visible

SIGNS: dict[MarkKind, str] = {
    "alert": "⚠",
    "alarm": "!",
    "decision": "◆",
    "rollback": "↶",
    "checkpoint": "✓",
    "setting": "→",
    "evaluation": "◇",
    "resumed": "↻",
    "end": "■",
}
ERROR = LEVELS["error"]  # an alert or alarm of that level
_COLUMN = 66  # columns in which an event can be read


def sign_of(mark: Mark) -> Piece:
    """Return the sign of a mark and the role that it is drawn in."""
    if mark.level == "error":
        return ERROR, "missing"
    if mark.kind in ("alert", "alarm") and mark.level != "info":
        return SIGNS[mark.kind], "alert"
    return SIGNS[mark.kind], "strong" if mark.kind in ("decision", "rollback", "setting", "end") else "muted"


def checkpoints_text(marks: Sequence[Mark]) -> str:
    """Fold the checkpoints among `marks` into a few words; empty without one."""
    saved = [mark.iteration for mark in marks if mark.kind == "checkpoint"]
    if not saved:
        return ""
    first, last = min(saved), max(saved)
    return f"checkpoint {last}" if first == last else f"checkpoints {first} to {last}, newest {saved[-1]}"


def by_severity(marks: Sequence[Mark]) -> list[Mark]:
    """Return all but the checkpoints: errors first, then warnings, then the rest; in each of them the newest first."""
    return sorted((mark for mark in reversed(marks) if mark.kind != "checkpoint"), key=lambda mark: -_severity(mark))


def lines_wanted(marks: Sequence[Mark], width: int) -> int:
    """Return the lines that `marks` take with their heading, in as many columns as can be read; 0 without a mark."""
    others = sum(mark.kind != "checkpoint" for mark in marks)
    return 1 - (-others // max(width // _COLUMN, 1)) if marks else 0


def timeline(marks: Sequence[Mark], width: int, height: int, *, top: int = 0) -> list[Line]:
    """Return a heading and the marks by severity, in at most `height` lines of `width` columns.

    Marks that would not fit below each other are in columns, if these are wide enough to be read. The checkpoints are
    in the heading. top: leave out this many marks at the start.
    """
    if not marks or height < 1:
        return []
    ordered, rows = by_severity(marks), height - 1
    across = min(max(width // _COLUMN, 1), max(-(-len(ordered) // rows), 1)) if rows else 1
    shown = ordered[top : top + rows * across]
    count = f"events · {len(shown)} of {len(ordered)}" if 0 < len(shown) < len(ordered) else f"events · {len(ordered)}"
    saved = checkpoints_text(marks)
    heading = " · ".join(filter(None, (count if ordered else "", saved)))
    if len(heading) >= width:
        heading = heading.removeprefix("events · ").partition(",")[0]
    digits = max((len(str(mark.iteration)) for mark in ordered), default=1)
    lines: list[Line] = [[] for _ in range(min(rows, len(shown)))]
    for place, mark in enumerate(shown):
        column, row = divmod(place, rows)
        start, end = (width * edge // across for edge in (column, column + 1))
        lines[row] += _line(mark, digits, end - start, pad=column < across - 1)
    return [rule(heading, width), *lines]


def _severity(mark: Mark) -> int:
    """Return 2 for an error, 1 for a warning, 0 for everything else."""
    return 2 if mark.level == "error" else int(mark.kind in ("alert", "alarm") and mark.level != "info")


def _line(mark: Mark, digits: int, width: int, *, pad: bool = False) -> Line:
    room = width - digits - 5
    text = fit_start(visible(mark.text), room)
    sign, role = sign_of(mark)
    return [
        (f" {sign} ", role),
        (f"{mark.iteration:>{digits}} ", "muted"),
        (padded(text, room + 1) if pad else text, role if role in ("alert", "missing") else "text"),
    ]


class Timeline(Drawn, can_focus=True):
    """Widget with the newest evaluations above the marks by severity; keys and mouse wheel scroll through the marks."""

    COMPONENT_CLASSES: ClassVar[set[str]] = component_classes("text", "strong", "muted", "axis", "missing", "alert")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll_marks(-1)", "up", show=False, id="timeline.up", tooltip="Show the event above"),
        Binding("down", "scroll_marks(1)", "down", show=False, id="timeline.down", tooltip="Show the event below"),
        Binding("pageup", "page(-1)", "page up", show=False, id="timeline.page-up", tooltip="Show the events above"),
        Binding(
            "pagedown", "page(1)", "page down", show=False, id="timeline.page-down", tooltip="Show the events below"
        ),
    ]
    _evaluations: Sequence[Mark] = ()
    _marks: Sequence[Mark] = ()
    _newest: Mark | None = None
    _top = 0  # marks above the first visible one

    def show(self, marks: Sequence[Mark], evaluations: Sequence[Mark] = ()) -> None:
        """Replace the marks; a list that only grew still shows what was scrolled to.

        evaluations: shown on top, one line each, wherever the marks are scrolled to.
        """
        newest = marks[-1] if marks else None
        if newest is self._newest and len(marks) == len(self._marks) and evaluations == self._evaluations:
            return
        if self._top and self._marks:
            first, now = by_severity(self._marks)[self._top], by_severity(marks)
            self._top = now.index(first) if first in now else 0
        self._evaluations = evaluations
        self._marks, self._newest = tuple(marks), newest
        self._scroll(0)

    def action_scroll_marks(self, lines: int) -> None:
        self._scroll(lines)

    def action_page(self, pages: int) -> None:
        self._scroll(pages * self._rows)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        self._scroll(-1)
        event.stop()

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        self._scroll(1)
        event.stop()

    def draw(self, width: int, height: int) -> list[Line]:
        digits = max((len(str(mark.iteration)) for mark in self._evaluations), default=0)
        newest = [_line(mark, digits, width) for mark in self._evaluations[:height]]
        return [*newest, *timeline(self._marks, width, height - len(newest), top=self._top)]

    @property
    def _rows(self) -> int:
        """Number of lines for the marks, without their heading."""
        return max(self.size.height - len(self._evaluations) - 1, 1)

    def _scroll(self, lines: int) -> None:
        most = max(len(by_severity(self._marks)) - self._rows, 0)
        self._top = min(max(self._top + lines, 0), most)
        self.redraw()
