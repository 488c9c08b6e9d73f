"""The active alarms of a run, one line each, above its metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len

from trainer.events import Alarm
from workbench.kit.cells import fit_start
from workbench.kit.drawing import Drawn, Line, component_classes
from workbench.run.alarms import SIGNS, title, urgent_first
from workbench.text import visible

_MOST = 3  # lines
_ROOM = 18  # lines of a pane that shows more than one alarm
_ROLES = {"info": "muted", "error": "missing"}  # other levels: alert


def alarm_lines(alarms: Sequence[Alarm], width: int, height: int, key: str) -> list[Line]:
    """Return `alarms`, the most severe first, in at most `height` lines of `width` columns.

    The first line ends with the number of alarms that have no line and with the `key` that opens them.
    """
    lines: list[Line] = []
    left = len(alarms) - height
    for alarm in urgent_first(alarms)[: max(height, 0)]:
        more = f"and {left} more   " if left > 0 else ""
        end = "" if lines else fit_start(f"  {more}{key} opens ", width)
        room = width - cell_len(end)
        sign = SIGNS.get(alarm.level, SIGNS["warning"])
        head = fit_start(f" {sign} {alarm.iteration} {visible(title(alarm))}", room)
        message = fit_start(f"  {visible(alarm.message)}", room - cell_len(head))
        gap = " " * (room - cell_len(head) - cell_len(message))
        lines.append([(head, _ROLES.get(alarm.level, "alert")), (message + gap, "text"), (end, "muted")])
    return lines


class AlarmLines(Drawn):
    """Widget that draws the alarms it is given."""

    COMPONENT_CLASSES: ClassVar[set[str]] = component_classes("text", "muted", "missing", "alert")

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._alarms: Sequence[Alarm] = ()
        self._key = ""

    def show(self, alarms: Sequence[Alarm], key: str, room: int) -> int:
        """Draw `alarms`, newest last, from now on, and return how many of `room` lines they take. `key` opens them."""
        taken = min(len(alarms), _MOST if room >= _ROOM else 1)
        self.display = bool(taken)
        self.styles.height = taken
        if (shown := (tuple(alarms), key)) != (self._alarms, self._key):
            self._alarms, self._key = shown
            self.redraw()
        return taken

    def draw(self, width: int, height: int) -> list[Line]:
        return alarm_lines(self._alarms, width, height, self._key)
