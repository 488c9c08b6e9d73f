"""Where the time of an iteration went: a line with a bar for each phase."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from workbench.numbers import duration
from workbench.text import Line, Piece, fit_start

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_SHORT = {"generate": "gen", "evaluate": "eval"}
_OTHER = "other"


class _Gaps(NamedTuple):
    """Columns before a name, between name and bar, and between bar and seconds."""

    before: int
    within: int
    after: int


_WIDE, _TIGHT = _Gaps(2, 1, 1), _Gaps(1, 1, 0)


def time_line(seconds: Mapping[str, float], iteration: int, width: int) -> Line:
    """Return a line of `width` columns: each phase with a bar as long as its share of the time, and its seconds.

    Where names and seconds leave no room for bars, the heading, the names and the gaps get shorter; then the shortest
    phases become one, `other`.
    """
    spent = {phase: value for phase, value in seconds.items() if math.isfinite(value) and value > 0}
    if not spent:
        return []
    total = duration(sum(spent.values()))
    short = {_SHORT.get(phase, phase): value for phase, value in spent.items()}
    for heading, phases, least in (
        (f" where the time of iteration {iteration} went   {total}", spent, 8),
        (f" iteration {iteration}  {total}", spent, 3),
        (f" iteration {iteration}  {total}", short, 2),
        (f" {total}", short, 2),
    ):
        if (room := _room(heading, phases, width, _WIDE)) >= least * len(phases):
            return _line(heading, phases, room, _WIDE)
    heading = f" {total}"
    while (room := _room(heading, short, width, _TIGHT)) < len(short) and len(short) > 1:
        short = _merged(short)
    return _line(heading, short, room, _TIGHT) if room > 0 else [(fit_start(heading, width), "muted")]


def _room(heading: str, phases: Mapping[str, float], width: int, gaps: _Gaps) -> int:
    """Return the columns that are left for the bars."""
    return (
        width - len(heading) - sum(len(phase) + len(_text(value, gaps)) + sum(gaps) for phase, value in phases.items())
    )


def _line(heading: str, phases: Mapping[str, float], room: int, gaps: _Gaps) -> Line:
    line: Line = [(heading, "muted")]
    for (phase, value), eighths in zip(phases.items(), _shares(list(phases.values()), 8 * room), strict=True):
        whole, rest = divmod(eighths, 8)
        bar: Piece = ("█" * whole + _EIGHTHS[rest].strip(), "series")
        before, within, after = (" " * gap for gap in gaps)
        line += [(f"{before}{phase}{within}", "muted"), bar, (after + _text(value, gaps), "text")]
    return line


def _text(seconds: float, gaps: _Gaps) -> str:
    return f"{seconds:.0f}s" if gaps is _TIGHT and 0.5 <= seconds < 10 else duration(seconds)


def _shares(values: list[float], room: int) -> list[int]:
    """Return the lengths of the bars in eighths of a column, at least one each; in columns, together at most `room`."""
    free, total = room - 8 * len(values), sum(values)
    return [1 + math.floor(value / total * max(free, 0)) for value in values]


def _merged(phases: Mapping[str, float]) -> dict[str, float]:
    """Return the phases with the shortest one added to `other`, which is the last."""
    rest = {phase: value for phase, value in phases.items() if phase != _OTHER}
    shortest = min(rest, key=lambda phase: rest[phase])
    other = phases.get(_OTHER, 0.0) + rest.pop(shortest)
    return {**rest, _OTHER: other}
