"""Accuracy of a reward model on held-out pairs, with its interval, beside baselines."""

from __future__ import annotations

import math
from typing import ClassVar

from rich.cells import cell_len

from workbench.kit.cells import fit
from workbench.kit.drawing import Drawn, Line, component_classes, line_of, rule
from workbench.kit.scale import number_text
from workbench.reward_model.measures import Measure, Measured
from workbench.text import visible

_NAME = 22  # columns
_LEAST_BAR = 12
_NOTHING = "nothing was held out, or nothing evaluated yet"


def accuracy_lines(measured: Measured | None, width: int, height: int) -> list[Line]:
    """Return at most `height` lines of at most `width` columns: title, a row per measure, further numbers and parts."""
    if measured is None:
        return [rule("held-out accuracy", width), [(f" {_NOTHING}"[:width], "muted")]][:height]
    title = f"held-out accuracy · {measured.pairs} pairs · after step {measured.iteration}"
    lines = [rule(title, width), _row(measured.model, width, "series")]
    lines += [_row(one, width, "muted") for one in measured.others]
    facts = f" log-loss {_number(measured.log_loss)} nats   calibration error {_number(measured.calibration_error)}"
    lines.append([(facts[:width], "text")])
    if math.isfinite(measured.model.low) and not measured.beats_length:
        lines.append([(" △ not clearly better than length alone: label more"[:width], "alert")])
    for heading, rows in measured.parts:
        if len(rows) > 1:
            lines += [[(f" {heading}"[:width], "muted")], *(_row(one, width, "text") for one in rows)]
    return lines[:height]


def _row(one: Measure, width: int, role: str) -> Line:
    interval = f"{100 * one.low:.1f} to {100 * one.high:.1f}" if _is_interval(one) else ""
    value = f"{100 * one.value:.1f} %" if math.isfinite(one.value) else "-"
    text = f" {fit(visible(one.name), _NAME)} {value:>7}  {interval:<12}"
    room = width - cell_len(text) - 2
    pieces: Line = [(fit(text, width) if room < 0 else text, "strong" if role == "series" else "text")]
    return [*pieces, (" ", "text"), *_bar(one, room, role)] if room >= _LEAST_BAR else pieces


def _bar(one: Measure, width: int, role: str) -> Line:
    """Return a bar from 0 to 100%: the value ●, its interval ├─┤, and ┊ at chance."""
    cells = [(" ", "axis")] * width
    cells[(width - 1) // 2] = ("┊", "axis")
    if _is_interval(one):
        first, last = (_place(end, width) for end in (one.low, one.high))
        for place in range(first, last + 1):
            cells[place] = ("├" if place == first else "┤" if place == last else "─", role)
    if math.isfinite(one.value):
        cells[_place(one.value, width)] = ("●", role)
    return line_of(cells)


def _is_interval(one: Measure) -> bool:
    return math.isfinite(one.low) and math.isfinite(one.high)


def _place(share: float, width: int) -> int:
    return round(min(max(share, 0.0), 1.0) * (width - 1))


def _number(value: float) -> str:
    return number_text(value, 3, 9) if math.isfinite(value) else "-"


class RewardAccuracy(Drawn):
    """Widget that draws the evaluation it was given last."""

    COMPONENT_CLASSES: ClassVar[set[str]] = component_classes("text", "strong", "muted", "axis", "series", "alert")

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._measured: Measured | None = None

    def show(self, measured: Measured | None) -> None:
        """Draw `measured` from now on."""
        self._measured = measured
        self.redraw()

    def draw(self, width: int, height: int) -> list[Line]:
        return accuracy_lines(self._measured, width, height)
