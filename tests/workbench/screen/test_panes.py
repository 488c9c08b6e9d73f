"""Panes by terminal size; the focus survives every resize."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_run import make_run
from textual.pilot import Pilot
from textual.widget import Widget
from waiting import until
from workbench_app import settle, workbench

from workbench.kit.pane import Pane
from workbench.screen.main_screen import MainScreen
from workbench.screen.panes import DASHBOARD, DRAWER, EDITING, READING, SMALLEST, arrange

PANES = (*DASHBOARD, *DRAWER)
SIDES = st.integers(1, 400)


@pytest.mark.parametrize(
    ("size", "current", "shown"),
    [
        ((80, 24), "training", ("training",)),
        ((80, 24), "log", ("log",)),
        ((120, 36), "config", EDITING),
        ((120, 36), "training", DASHBOARD),
        ((120, 36), "samples", READING),
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


def test_an_empty_log_takes_no_lines_until_the_user_goes_there() -> None:
    assert arrange(200, 60, "samples", empty_log=True) == DASHBOARD
    assert arrange(200, 60, "log", empty_log=True) == DASHBOARD + DRAWER


@given(SIDES, SIDES, st.sampled_from(PANES), st.booleans())
def test_the_current_pane_is_always_among_those_shown(width: int, height: int, current: str, zoomed: bool) -> None:
    panes = arrange(width, height, current, zoomed=zoomed)
    assert len(set(panes)) == len(panes)
    if width >= SMALLEST[0] and height >= SMALLEST[1]:
        assert current in panes
        assert not zoomed or panes == (current,)
    else:
        assert panes == ()


def sizes(seed: int, count: int) -> Iterator[tuple[int, int]]:
    """Yield sizes from 20 x 5 to 250 x 70; the last is a usual one."""
    chance = random.Random(seed)
    for _ in range(count - 1):
        yield chance.randint(20, 250), chance.randint(5, 70)
    yield 80, 24


@pytest.mark.usefixtures("hurried")
async def test_the_focus_stays_in_its_pane_at_every_size() -> None:
    folder = make_run("past")
    async with workbench(size=(120, 40), watch=folder) as (screen, pilot):
        for seed, pane in enumerate(screen.query(Pane)):
            await pilot.press("escape")
            screen.action_show_pane(str(pane.id))
            await settle(pilot)
            for turn, widget in enumerate([w for w in pane.query("*") if w.focusable and w.region.area]):
                widget.focus()
                await pilot.pause()
                await resized(screen, pilot, pane, widget, 10 * seed + turn)


async def resized(screen: MainScreen, pilot: Pilot[str], pane: Pane, widget: Widget, seed: int) -> None:
    """Try sizes while `widget` of `pane` has the focus; at the last it must have it, unless it is not shown there."""
    for size in sizes(seed, 8):
        await pilot.resize_terminal(*size)
        await pilot.pause()
        if size[0] < SMALLEST[0] or size[1] < SMALLEST[1]:
            continue  # nothing is shown that could have the focus
        await until(pilot, lambda: screen.focused is not None)
        assert screen.focused in pane.query("*"), (size, pane.id, widget, screen.focused)
        assert pane.region.area, (size, pane.id)
    if widget.focusable:
        assert screen.focused is widget, (pane.id, widget, screen.focused)
