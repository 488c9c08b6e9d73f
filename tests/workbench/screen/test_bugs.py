"""Unexpected errors: reported where they are seen, without losing a run."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import scripted_run
from scripted_run import make_run
from textual.pilot import Pilot
from waiting import until
from workbench_app import press_when_asked, screen_text, start_run, status, workbench

from workbench.kit.banner import Banner
from workbench.log.pane import LogPane
from workbench.run.view import RunView


def broken(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("a bug of ours [/x]")


BUG = "ZeroDivisionError('a bug of ours [/x]')"


async def test_a_listing_that_fails_is_reported_once_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def failing(*_: object) -> None:
        calls.append(threading.get_ident())
        broken()

    monkeypatch.setattr("workbench.runs.pane.read_runs", failing)
    async with workbench(scripted_run.steered, bugs=[BUG]) as (screen, pilot):
        banner = screen.query_one(Banner)
        await start_run(pilot)
        await pilot.press("f7")
        await until(pilot, lambda: banner.display)
        assert "unexpected ZeroDivisionError: a bug of ours [/x]: this is a bug" in str(banner.render())
        await pilot.press("escape")
        screen.query_one("#runs").refresh_runs()  # type: ignore[attr-defined]
        await until(pilot, lambda: len(calls) > 2)
        reached = screen.supervisor.view.iteration
        await until(pilot, lambda: screen.supervisor.view.iteration > reached + 2)
        assert not banner.display, "it was read"
        assert screen.supervisor.trains_here
        await pilot.press("f8")
        assert screen.query_one(LogPane).display
        await until(pilot, lambda: "ZeroDivisionError: a bug of ours [/x]" in screen_text(screen))


async def test_a_bug_that_arises_while_the_screen_closes_raises_no_other() -> None:
    async with workbench(bugs=[BUG]) as (screen, _):
        await screen.query_one(Banner).remove()
        screen.report(ZeroDivisionError("a bug of ours [/x]"))


@pytest.mark.parametrize(
    ("where", "keys"),
    [
        ("workbench.screen.labelling_controller.labelling_material", ["f5", "enter"]),
        ("workbench.screen.main_screen.whole_run", ["f7", "m", "down", "m"]),
        ("workbench.runs.pane.read_detail", ["f7", "down"]),
    ],
)
async def test_whatever_worker_fails_the_screen_stays(
    where: str, keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run("first")
    make_run("second")
    monkeypatch.setattr(where, broken)
    async with workbench(scripted_run.wait, bugs=[BUG]) as (screen, pilot):
        await start_run(pilot)
        await until(pilot, lambda: "iteration 1/12" in status(screen))
        await pilot.press("f7")
        await until(pilot, lambda: "second" in screen_text(screen))
        await pilot.press(*keys)
        await until(pilot, lambda: bool(screen.bugs))
        assert screen.app.is_running
        assert screen.supervisor.trains_here


async def test_a_bug_in_showing_a_run_is_reported_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with workbench(scripted_run.steered, bugs=[BUG]) as (screen, pilot):
        await start_run(pilot)
        await until(pilot, lambda: screen.supervisor.view.iteration > 1)
        with monkeypatch.context() as patch:
            patch.setattr(RunView, "take", broken)
            await until(pilot, lambda: bool(screen.bugs))
        reached = screen.supervisor.view.iteration
        await until(pilot, lambda: screen.supervisor.view.iteration > reached)
        assert screen.supervisor.trains_here


@pytest.mark.parametrize(
    ("where", "keys"),
    [
        pytest.param("workbench.runs.table.RunTable.item_line", ["f7"], id="a list is drawn"),
        pytest.param("workbench.training.overview.Overview.draw", [], id="a chart is drawn"),
        pytest.param("workbench.kit.status_line.StatusLine.render", [], id="a line is drawn"),
        pytest.param("workbench.screen.main_screen.MainScreen.action_zoom", ["z"], id="a key's action"),
        pytest.param("workbench.samples.browser.SampleBrowser.take_part", ["f4", "r"], id="the part of a reading"),
        pytest.param("workbench.samples.pane.SamplesPane.show_iteration", ["f3", "left"], id="a message of a pane"),
        pytest.param("workbench.run.supervisor.Supervisor.stop", ["X", "y"], id="the answer of a dialog"),
        pytest.param("workbench.screen.reward_models.RewardModels.watch", [], id="a timer"),
    ],
)
async def test_a_bug_of_the_screen_is_reported_once_with_its_traceback_in_the_log_and_the_run_goes_on(
    where: str, keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run("past")
    monkeypatch.setattr("workbench.samples.sample_list.scan", lambda *_: iter([None]))  # as if it read files
    async with workbench(scripted_run.steered, bugs=[BUG]) as (screen, pilot):
        banner = screen.query_one(Banner)
        await start_run(pilot)
        await until(pilot, lambda: screen.supervisor.view.iteration > 1)
        monkeypatch.setattr(where, broken)
        for key in keys:
            await (press_when_asked if key == "y" else Pilot.press)(pilot, key)
        await until(
            pilot, lambda: "unexpected ZeroDivisionError: a bug of ours [/x]: this is a bug" in screen_text(screen)
        )
        monkeypatch.undo()
        await pilot.press("f7", "escape", "f8")
        assert not banner.display
        await until(pilot, lambda: 'raise ZeroDivisionError("a bug of ours [/x]")' in screen_text(screen))
        reached = screen.supervisor.view.iteration
        await until(pilot, lambda: screen.supervisor.view.iteration > reached)
        assert screen.supervisor.trains_here
