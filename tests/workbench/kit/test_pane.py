"""Screens that are left before they are complete close without errors; repeated readings on threads are seldom."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from label_screens import NOTHING, Host
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Static
from waiting import until

from workbench.app import WorkbenchApp
from workbench.kit import pane
from workbench.kit.pane import MountedWhole, Throttled
from workbench.kit.theming import ThemedApp
from workbench.labelling.dialogs import GuidelinesScreen
from workbench.opening import Opening


@pytest.mark.parametrize("steps", range(8))
async def test_leaving_while_the_screen_opens_causes_no_error(steps: int) -> None:
    app = WorkbenchApp(Opening())
    async with app.run_test():
        while app.main is None:
            await asyncio.sleep(0)
        for _ in range(steps):
            await asyncio.sleep(0)
        app.exit()
    assert not app.report.getvalue()


async def test_of_two_quick_keys_the_first_answers_and_the_second_does_not_close_the_screen_below() -> None:
    app = Host()
    async with app.run_test() as pilot:
        below = app.screen
        app.push_screen(dialog := GuidelinesScreen("Be fair."), app.take)
        dialog.dismiss(True)  # faster than the screen
        dialog.dismiss(False)
        await until(pilot, lambda: app.answer is not NOTHING and not dialog.is_attached)
        assert app.answer is True
        assert app.screen is below


async def test_a_dialog_that_is_answered_under_another_one_is_closed_when_it_is_on_top_again() -> None:
    app = Host()
    async with app.run_test() as pilot:
        below = app.screen
        app.push_screen(dialog := GuidelinesScreen("Be fair."), app.take)
        app.push_screen(over := GuidelinesScreen("Be quick."))
        await until(pilot, lambda: over.is_mounted)
        dialog.dismiss(True)
        await pilot.pause()
        assert app.screen is over
        assert app.answer is NOTHING
        over.dismiss(False)
        await until(pilot, lambda: app.screen is below)
        assert app.answer is True


class Asked(Message):
    """Make the pane read, for its title."""


class Reader(MountedWhole, Vertical):
    """Pane that has read after `steps` turns of the event loop."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps

    def compose(self) -> ComposeResult:
        yield Static(id="title")

    @on(Asked)
    def start(self) -> None:
        self.run_worker(self._read())

    async def _read(self) -> None:
        for _ in range(self._steps):
            await asyncio.sleep(0)
        self.query_one("#title", Static).update("read")


@pytest.mark.parametrize("steps", range(16))
async def test_reading_that_ends_while_its_pane_is_removed_causes_no_error(steps: int) -> None:
    reader = Reader(steps)
    async with ThemedApp[None]().run_test() as pilot:
        await pilot.app.mount(reader)
        reader.query_one("#title").post_message(Asked())  # begins it while the application closes


async def test_a_second_reading_does_not_begin_while_one_is_under_way() -> None:
    go_on, limit = threading.Event(), Throttled()
    first = asyncio.create_task(limit.read(lambda: go_on.wait(60)))
    await asyncio.sleep(0)  # the first has begun
    assert await limit.read(lambda: "second") is None
    go_on.set()
    assert await first is True


@pytest.mark.parametrize(("rests", "again"), [(True, None), (False, "again")])
async def test_a_costly_reading_is_repeated_only_after_a_rest(
    rests: bool, again: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pane, "_REST", 1e6)
    limit = Throttled(rests=rests)
    assert await limit.read(_costly) == "found"
    assert await limit.read(lambda: "again") == again


async def test_a_reading_that_fails_is_repeated() -> None:
    limit = Throttled()
    with pytest.raises(ZeroDivisionError):
        await limit.read(lambda: 1 // 0)
    assert await limit.read(lambda: "found") == "found"


def _costly() -> str:
    began = time.thread_time()
    while time.thread_time() - began < 0.001:
        pass
    return "found"
