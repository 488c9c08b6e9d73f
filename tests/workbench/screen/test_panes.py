"""Panes by terminal size: one on a small one, three side by side, all on a large one, none below the minimum."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.screen.panes import DASHBOARD, DRAWER, EDITING, SMALLEST, arrange

PANES = (*DASHBOARD, *DRAWER)
sizes = st.integers(1, 400)


@pytest.mark.parametrize(
    ("size", "current", "shown"),
    [
        ((80, 24), "training", ("training",)),
        ((80, 24), "log", ("log",)),
        ((120, 36), "config", EDITING),
        ((120, 36), "training", DASHBOARD),
        ((120, 36), "home", ("home",)),
        ((200, 60), "config", DASHBOARD + DRAWER),
        ((200, 60), "log", DASHBOARD + DRAWER),
        ((60, 20), "samples", ("samples",)),
        ((59, 20), "samples", ()),
        ((60, 19), "samples", ()),
    ],
)
def test_the_size_decides(size: tuple[int, int], current: str, shown: tuple[str, ...]) -> None:
    assert arrange(*size, current) == shown


@given(sizes, sizes, st.sampled_from(PANES), st.booleans())
def test_the_current_pane_is_always_among_those_shown(width: int, height: int, current: str, zoomed: bool) -> None:
    panes = arrange(width, height, current, zoomed=zoomed)
    assert len(set(panes)) == len(panes)
    if width >= SMALLEST[0] and height >= SMALLEST[1]:
        assert current in panes
        assert not zoomed or panes == (current,)
    else:
        assert panes == ()
