"""Helpers of the tests that drive the real application with Pilot."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
from file_guard import files_on_this_thread
from scripted_run import Script
from textual._context import visible_screen_stack
from textual.app import App
from textual.pilot import Pilot
from textual.strip import Strip
from textual.worker import WorkerCancelled
from waiting import until

from workbench.app import WorkbenchApp
from workbench.kit.dialog import ConfirmScreen
from workbench.kit.pane_strip import TopLines
from workbench.opening import Opening
from workbench.run import supervisor
from workbench.screen.dialogs import QuitScreen, RunQuestion
from workbench.screen.main_screen import MainScreen

HOME = "home"


@asynccontextmanager
async def workbench(
    play: Any = None,
    *,
    size: tuple[int, int] = (120, 36),
    pane: str = "training",
    **opening: Any,
) -> AsyncIterator[tuple[MainScreen, Pilot[str]]]:
    """Open the application with a scripted trainer; abort its run, if one is left, at the end.

    pane: the pane to go to, in place of Home, on which it opens.
    """
    app = WorkbenchApp(Opening(train=play if play is None or isinstance(play, Script) else Script(play), **opening))
    with pytest.MonkeyPatch.context() as patch:
        # Each end of a run would look through all that the worker has loaded, for 0.2 s; see test_supervisor.
        patch.setattr(supervisor, "gc", create_autospec(gc))
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: app.main is not None and app.main.is_attached and app.main.ready)
            assert app.main is not None
            if app.main.query_one(f"#{HOME}").display and pane != HOME:
                app.main.action_show_pane(pane)
                await pilot.pause()
            try:
                with files_on_this_thread() as found:
                    yield app.main, pilot
                assert not found, f"files were used on the thread of the screen: {found}"
            finally:  # a thread that is left behind would keep the test run from ending
                if app.main.supervisor.trains_here:
                    app.main.supervisor.abort()
                    app.main.supervisor.wait()


async def press_when_asked(pilot: Pilot[Any], *keys: str) -> None:
    """Press the keys once a question is open."""
    await until(pilot, lambda: isinstance(pilot.app.screen, ConfirmScreen | QuitScreen))
    await pilot.press(*keys)


async def start_run(pilot: Pilot[Any], key: str = "space") -> None:
    """Start the configuration on the screen, and agree to the plan. key: space, or s for one iteration."""
    await pilot.press(key)
    await until(pilot, lambda: isinstance(pilot.app.screen, RunQuestion))
    await press_when_asked(pilot, "enter")
    app = pilot.app
    await until(pilot, lambda: not isinstance(app.screen, RunQuestion) and not _asking(app))


def _asking(app: App[Any]) -> bool:
    """Return whether a flow of dialogs goes on, though none is open."""
    under_way = any(worker.group == "dialog" and not worker.is_finished for worker in app.workers)
    return under_way and isinstance(app.screen, MainScreen)


async def settle(pilot: Pilot[Any]) -> None:
    """Wait until no thread is at work, those that their results start included, and what they read is shown."""
    quiet = 0
    while quiet < 2:
        await pilot.pause()
        running = [worker for worker in pilot.app.workers if not worker.is_finished]
        quiet = 0 if running else quiet + 1
        for worker in running:
            with suppress(WorkerCancelled):  # replaced by a newer one
                await worker.wait()


def screen_text(screen: MainScreen) -> str:
    """Return the terminal's text, line by line."""
    return "\n".join(
        "".join(segment.text for segment in strip).rstrip() for strip in screen._compositor.render_strips()
    )


def status(screen: MainScreen) -> str:
    """Return the lines on top: the panes, and the state of the run."""
    return "\n".join(screen_text(screen).splitlines()[: screen.query_one(TopLines).size.height])


def runs_folder(folder: Path) -> Path:
    """Return a folder for runs inside `folder`."""
    (folder / "runs").mkdir(exist_ok=True)
    return folder / "runs"


def with_background(app: App[Any]) -> list[Strip]:
    """Return what the terminal shows, line by line: the screen on top, and through it the screens below."""
    visible_screen_stack.set(app._background_screens)
    return app.screen._compositor.render_strips()
