"""The focus survives every resize of the terminal: it stays on its widget, or at least in its pane or dialog."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from scripted_run import make_run
from textual.pilot import Pilot
from textual.widget import Widget
from waiting import until
from workbench_app import settle, workbench

from workbench.kit.pane import Pane
from workbench.screen.main_screen import MainScreen
from workbench.screen.panes import SMALLEST


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
