"""Arrangement of the panes on a terminal of a given size."""

from __future__ import annotations

from typing import NamedTuple

SMALLEST = (60, 20)  # columns, lines: below, nothing useful can be read
SIDE_BY_SIDE = (116, 24)
EVERYTHING = (180, 48)

DASHBOARD = ("config", "training", "samples")
ALONE = ("label", "reward-model")  # they need the whole width, and nothing should distract a labeller
DRAWER = ("runs", "log")  # below the dashboard if there is room for all


class Arrangement(NamedTuple):
    """Names of the panes in each of two rows, from left to right; none if the terminal is too small."""

    top: tuple[str, ...]
    bottom: tuple[str, ...]


def arrange(width: int, height: int, current: str, *, zoomed: bool = False) -> Arrangement:
    """Return the panes to show on `width` columns by `height` lines, when the user is at the pane `current`.

    On a small terminal or when zoomed, only the current pane is shown. The panes for labels and reward models are
    always shown alone. Otherwise configuration, charts and samples are side by side. A large terminal shows runs and
    log below them; a smaller one shows each of these two alone.
    """
    if width < SMALLEST[0] or height < SMALLEST[1]:
        return Arrangement((), ())
    if zoomed or current in ALONE or width < SIDE_BY_SIDE[0] or height < SIDE_BY_SIDE[1]:
        return Arrangement((current,), ())
    if width >= EVERYTHING[0] and height >= EVERYTHING[1]:
        return Arrangement(DASHBOARD, DRAWER)
    return Arrangement(DASHBOARD, ()) if current in DASHBOARD else Arrangement((current,), ())
