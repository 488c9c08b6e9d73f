"""Which panes stand where on a terminal of a given size."""

from __future__ import annotations

from typing import NamedTuple

SMALLEST = (60, 20)  # columns, lines: below, nothing useful can be read
SIDE_BY_SIDE = (116, 24)
EVERYTHING = (180, 48)

DASHBOARD = ("config", "training", "samples")
ALONE = ("label", "reward-model")  # what they show needs the whole width, and a labeller nothing beside it
DRAWER = ("runs", "log")  # under the dashboard where there is room for all


class Arrangement(NamedTuple):
    """Names of the panes in each of two rows, from left to right; none at all where the terminal is too small."""

    top: tuple[str, ...]
    bottom: tuple[str, ...]


def arrange(width: int, height: int, current: str, *, zoomed: bool = False) -> Arrangement:
    """The panes to show on `width` columns by `height` lines, when the user is at the pane `current`.

    One at a time on a small terminal, where one is zoomed, and of labels and reward models anywhere; configuration,
    charts and samples side by side when they fit; all of them on a large one.
    """
    if width < SMALLEST[0] or height < SMALLEST[1]:
        return Arrangement((), ())
    if zoomed or current in ALONE or width < SIDE_BY_SIDE[0] or height < SIDE_BY_SIDE[1]:
        return Arrangement((current,), ())
    if width >= EVERYTHING[0] and height >= EVERYTHING[1]:
        return Arrangement(DASHBOARD, DRAWER)
    return Arrangement(DASHBOARD, ()) if current in DASHBOARD else Arrangement((current,), ())
