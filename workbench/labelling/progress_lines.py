"""Figures on the progress of a session, in one line or in as many as they need."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.cells import cell_len
from textual.widgets import Static

from trainer.preferences.items import Progress, Share
from workbench.kit.cells import fit
from workbench.text import duration, visible

_GAP = "   "
_LEAST = 12  # labels needed for an interval: with fewer it can span more than half of the range


def figures(labeller: str, progress: Progress) -> list[str]:
    """Return the known figures of a session's progress, the most important first."""
    told = [visible(labeller), _done(progress)]
    if math.isfinite(progress.per_hour):
        told.append(f"{progress.per_hour:.0f}/h")
    if math.isfinite(progress.median_seconds):
        told.append(f"median {duration(progress.median_seconds)}")
    if math.isfinite(progress.eta_seconds):
        told.append(f"ETA {duration(progress.eta_seconds)}")
    if progress.streak > 1:
        told.append(f"{progress.streak} in a row")
    if progress.same.total:
        kappa = f", κ {progress.kappa:.2f}" if math.isfinite(progress.kappa) else ""
        told.append(f"agreement with yourself {progress.same.count:g}/{progress.same.total}{kappa}")
    told += [f"{name} {_percent(share)}" for name, share in _biases(progress) if share.total]
    return told


class LabelProgress(Static):
    """Widget that shows the figures of a session."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self._figures: Sequence[str] = ()
        self._end = ""
        self._whole = False

    def show(self, told: Sequence[str], end: str = "", *, whole: bool = False) -> None:
        """Show as many figures as fit in one line, then `end`. whole: show all, in as many lines as they need."""
        self._figures, self._end, self._whole = told, end, whole
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        if (width := self.size.width) <= 0:
            return
        told = [*self._figures, *filter(None, [self._end])]
        lines = packed(told, width) if self._whole else [fitting(self._figures, self._end, width)]
        self.update("\n".join(lines), layout=len(lines) != self.size.height)


def fitting(told: Sequence[str], end: str, width: int) -> str:
    """Join as many figures as fit in one line, with `end` after them.

    If even the first one does not fit with `end`, return the first alone, cut to `width`.
    """
    for count in range(len(told), 0, -1):
        line = _GAP.join([*told[:count], *([end] if end else [])])
        if cell_len(line) <= width:
            return line
    return fit(told[0], width) if told else ""


def packed(told: Sequence[str], width: int) -> list[str]:
    """Join all figures in as few lines as possible."""
    lines: list[str] = []
    for text in told:
        if lines and cell_len(lines[-1]) + len(_GAP) + cell_len(text) <= width:
            lines[-1] += _GAP + text
        else:
            lines.append(fit(text, min(cell_len(text), width)))
    return lines


def _done(progress: Progress) -> str:
    left = "" if progress.left is None else f" · {progress.left:,} left"
    return f"{progress.done:,} done{left}"


def _biases(progress: Progress) -> list[tuple[str, Share]]:
    return [("left chosen", progress.left_side), ("longer (chars) chosen", progress.longer)]


def _percent(share: Share) -> str:
    """Return the share with its interval, or with its total if the interval would be too wide to be useful."""
    told = f"{100 * share.low:.0f} to {100 * share.high:.0f}" if share.total >= _LEAST else f"n = {share.total}"
    return f"{100 * share.value:.0f}% ({told})"
