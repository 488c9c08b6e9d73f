"""Events of a run: its alarms, decisions, settings and evaluations, the newest first, and its checkpoints in a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import BindingType

from workbench.kit.drawing import DRAWN, ScrolledLines, rule, scroll_bindings
from workbench.run.sentences import SIGNS as LEVELS
from workbench.run.view import Mark, MarkKind
from workbench.text import Line, Piece, fit_start, visible

SIGNS: dict[MarkKind, str] = {
    "alert": "⚠",
    "alarm": "⚠",
    "decision": "◆",
    "rollback": "↶",
    "checkpoint": "✓",
    "setting": "→",
    "evaluation": "◇",
    "resumed": "↻",
    "end": "■",
}
ERROR = LEVELS["error"]  # an alert or alarm of that level
_URGENT = ("missing", "warning")  # roles whose text is drawn in them too
_STEPS = (0, 2, 3, 6, 13)  # numbers of lines


def sign_of(mark: Mark) -> Piece:
    """Return the sign of a mark and the role that it is drawn in."""
    if mark.level == "error":
        return ERROR, "missing"
    if mark.kind in ("alert", "alarm") and mark.level != "info":
        return SIGNS[mark.kind], "warning"
    return SIGNS[mark.kind], "strong" if mark.kind in ("decision", "rollback", "setting", "end") else "muted"


def timeline(marks: Sequence[Mark], width: int) -> list[Line]:
    """Return a heading with the checkpoints, then the other marks, a line each, those of the newest iteration first."""
    others = [mark for mark in reversed(marks) if mark.kind != "checkpoint"]
    others.sort(key=lambda mark: -mark.iteration)
    saved = [mark.iteration for mark in marks if mark.kind == "checkpoint"]
    heading = [f"events · {len(others)}"] if others else []
    if saved:
        first, last = min(saved), max(saved)
        several = f"checkpoints {first} to {last}, newest {saved[-1]}"
        heading.append(f"checkpoint {last}" if first == last else several)
    text = " · ".join(heading)
    if len(text) >= width:
        text = text.partition(",")[0]
        text = text if len(text) < width else text.removeprefix("events · ")
    lines: list[Line] = [rule(text, width)] if marks else []
    digits = max((len(str(mark.iteration)) for mark in others), default=1)
    for mark in others:
        sign, role = sign_of(mark)
        event = fit_start(visible(mark.text), width - digits - 5)
        number = f"{mark.iteration:>{digits}} "
        lines.append([(f" {sign} ", role), (number, "muted"), (event, role if role in _URGENT else "text")])
    return lines


class Timeline(ScrolledLines):
    """Widget with the events of a run, which keys and mouse wheel scroll."""

    CSS_NAME = "drawn"
    COMPONENT_CLASSES: ClassVar[set[str]] = DRAWN
    BINDINGS: ClassVar[list[BindingType]] = scroll_bindings("timeline")[:4]
    _marks: Sequence[Mark] = ()
    _wanted = 0

    def show(self, marks: Sequence[Mark]) -> int:
        """Replace the events, and return how many lines they want; what was scrolled to stays in sight.

        They want more in few steps, so that what is above them seldom moves.
        """
        if (len(marks), marks[-1:]) != (len(self._marks), self._marks[-1:]):
            before = len(self._lines)
            self._marks, self._wanted = tuple(marks), len(timeline(marks, 80))
            self.lay_out()
            if self.scroll_offset.y:
                self.scroll_to(y=self.scroll_offset.y + len(self._lines) - before, animate=False)
        return next((lines for lines in _STEPS if lines >= self._wanted), _STEPS[-1])

    def wrap(self, width: int) -> Sequence[Line]:
        return timeline(self._marks, width)
