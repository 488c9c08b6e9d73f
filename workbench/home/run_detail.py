"""Details of the run under the cursor, where the terminal has room: its curves and what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from workbench.kit.drawing import Drawn, component_classes, wrapped
from workbench.kit.lines import Line
from workbench.kit.run_curves import curves_of
from workbench.numbers import duration, moment
from workbench.run.glance import Glance
from workbench.run.sentences import errors, state_text

_PROBLEM = 500  # characters, at most


class RunDetail(Drawn):
    """The selected run: its settings in words, then score and KL as large as there is room."""

    COMPONENT_CLASSES: ClassVar[set[str]] = component_classes("text", "strong", "muted", "axis", "series", "alert")
    _glance: Glance | None = None

    def show(self, glance: Glance | None) -> None:
        """Show a run; nothing for None."""
        if glance != self._glance:
            self._glance = glance
            self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        glance = self._glance
        if glance is None or width < 2:
            return []
        lines = _facts(glance, width)
        room = height - len(lines) - 1
        return [*lines, *([[], *drawn] if (drawn := curves_of([("series", glance)], width, room)) else [])][:height]


def _facts(glance: Glance, width: int) -> list[Line]:
    run = glance.run
    facts = [f"iteration {run.iteration} of {run.iterations}", f"model {run.model}" if run.model else ""]
    facts.append(f"started {moment(run.started)}" if run.started else "")
    if math.isfinite(glance.seconds):
        facts.append(f"{duration(glance.seconds)} an iteration")
    pieces = [(run.name, "strong"), (f"   {state_text(run)}\n", "text"), ("   ".join(filter(None, facts)), "muted")]
    lines = wrapped(pieces, width)
    wrong = [f"⚠ {errors(run.alarms)} when it ended"] if errors(run.alarms) and run.state == "done" else []
    wrong += [f"✖ {run.problem[:_PROBLEM]}"] if run.problem else []
    for problem in wrong:
        lines += wrapped([(problem, "alert")], width)
    return lines
