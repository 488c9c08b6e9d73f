"""Timeline of a run: its alarms, decisions, checkpoints, settings and evaluations, newest last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import MouseScrollDown, MouseScrollUp

from workbench.columns import fit_start
from workbench.kit.drawing import Drawn, component_classes, rule
from workbench.kit.lines import Line, Piece
from workbench.run.sentences import SIGNS as LEVELS
from workbench.run.view import Mark, MarkKind
from workbench.text import visible

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


def sign_of(mark: Mark) -> Piece:
    """Return the sign of a mark and the role that it is drawn in."""
    if mark.level == "error":
        return ERROR, "missing"
    if mark.kind in ("alert", "alarm") and mark.level != "info":
        return SIGNS[mark.kind], "alert"
    return SIGNS[mark.kind], "strong" if mark.kind in ("decision", "rollback", "setting", "end") else "muted"


def timeline(marks: Sequence[Mark], width: int, height: int, *, back: int = 0) -> list[Line]:
    """Return a heading and the newest marks, one line each, in at most `height` lines of `width` columns.

    back: leave out this many of the newest marks.
    """
    if not marks or height < 1:
        return []
    stop = max(len(marks) - back, 1)
    shown = marks[max(stop - height + 1, 0) : stop] if height > 1 else []
    count = f"{len(shown)} of {len(marks)}" if len(shown) < len(marks) else str(len(marks))
    digits = max(len(str(mark.iteration)) for mark in (*shown, marks[-1]))
    return [rule(f"events · {count}", width), *(_line(mark, digits, width) for mark in shown)]


def _line(mark: Mark, digits: int, width: int) -> Line:
    text = fit_start(visible(mark.text), width - digits - 5)
    sign, role = sign_of(mark)
    return [
        (f" {sign} ", role),
        (f"{mark.iteration:>{digits}} ", "muted"),
        (text, role if role in ("alert", "missing") else "text"),
    ]


class Timeline(Drawn, can_focus=True):
    """Widget with the newest evaluations above the newest marks; keys and mouse wheel scroll to earlier marks."""

    COMPONENT_CLASSES: ClassVar[set[str]] = component_classes("text", "strong", "muted", "axis", "missing", "alert")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll_marks(1)", "earlier", show=False, id="timeline.up", tooltip="Show an earlier event"),
        Binding("down", "scroll_marks(-1)", "later", show=False, id="timeline.down", tooltip="Show a later event"),
        Binding("pageup", "page(1)", "page up", show=False, id="timeline.page-up", tooltip="Show earlier events"),
        Binding("pagedown", "page(-1)", "page down", show=False, id="timeline.page-down", tooltip="Show later events"),
    ]
    _evaluations: Sequence[Mark] = ()
    _marks: Sequence[Mark] = ()
    _newest: Mark | None = None
    _back = 0  # newer marks that are scrolled out of view

    def show(self, marks: Sequence[Mark], evaluations: Sequence[Mark] = ()) -> None:
        """Replace the marks; a list that only grew keeps the scroll position.

        evaluations: shown on top, one line each, wherever the marks are scrolled to.
        """
        newest = marks[-1] if marks else None
        if newest is self._newest and len(marks) == len(self._marks) and evaluations == self._evaluations:
            return
        self._evaluations = evaluations
        if self._back and newest is not None:
            self._back += max(len(marks) - len(self._marks), 0)
        self._marks, self._newest = tuple(marks), newest
        self._scroll(0)

    def action_scroll_marks(self, lines: int) -> None:
        self._scroll(lines)

    def action_page(self, pages: int) -> None:
        self._scroll(pages * max(self._height - 2, 1))

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        self._scroll(1)
        event.stop()

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        self._scroll(-1)
        event.stop()

    def draw(self, width: int, height: int) -> list[Line]:
        digits = max((len(str(mark.iteration)) for mark in self._evaluations), default=0)
        newest = [_line(mark, digits, width) for mark in self._evaluations]
        return [*newest, *timeline(self._marks, width, height - len(newest), back=self._back)]

    @property
    def _height(self) -> int:
        """Number of lines for the marks and their heading."""
        return self.size.height - len(self._evaluations)

    def _scroll(self, lines: int) -> None:
        most = max(len(self._marks) - max(self._height - 1, 1), 0)
        self._back = min(max(self._back + lines, 0), most)
        self.redraw()
