"""Messages and dialogs leave in view what was read; success does not look like an error, and outdated messages go."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest
import scripted_run
from label_material import reward_model
from scripted_run import make_run
from waiting import until
from workbench_app import screen_text, start_run, status, workbench

from trainer.engine.control import Control
from trainer.errors import UsageError
from trainer.events import RunEnded
from workbench.config.pane import ConfigPane
from workbench.kit.banner import Banner
from workbench.kit.dialog import ConfirmScreen
from workbench.screen.main_screen import MainScreen


def reported(screen: MainScreen) -> str:
    """Return the banner's text; empty while it is hidden."""
    banner = screen.query_one(Banner)
    return str(banner.render()) if banner.display else ""


async def test_a_message_moves_the_panes_down_and_takes_no_focus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.kit.banner.DONE_SECONDS", 1.0)
    async with workbench(size=(80, 24)) as (screen, pilot):
        focused, panes = screen.focused, screen.query_one("#panes")
        top = panes.region.y
        screen.notify("something [b]happened[/b]", title="Run")
        await until(pilot, lambda: panes.region.y == top + 1)
        banner = screen.query_one(Banner)
        assert "› Run: something [b]happened[/b]" in screen_text(screen), "its text is never markup"
        assert banner.region.bottom == panes.region.y
        assert screen.focused is focused
        assert not screen.app._notifications, "a toast would cover the panes"
        await until(pilot, lambda: panes.region.y == top)
        screen.notify("careful", severity="warning")
        await until(pilot, lambda: "▲ careful" in screen_text(screen))
        assert banner._timer is None, "it may need an answer, so it stays"
        await pilot.click(Banner)
        await until(pilot, lambda: not banner.display)
        screen.panes.say("cannot write it")
        screen.notify("careful", severity="warning")
        await pilot.press("escape")
        assert "cannot write it" in screen_text(screen), "a warning covers an error, and does not remove it"
        screen.panes.say("Imported 1 preference", "done")
        assert reported(screen).startswith("✓ Imported 1 preference")
        assert banner.has_class("-done")
        await until(pilot, lambda: "cannot write it" in reported(screen))
        assert not banner.has_class("-done")


async def test_what_fails_is_said_until_it_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.kit.banner.DONE_SECONDS", 0.2)
    async with workbench(size=(80, 24)) as (screen, pilot):
        panes = screen.panes

        def fail() -> None:
            raise UsageError("no such run")

        assert not panes.attempt(fail, about="start")
        assert "no such run" in reported(screen)
        assert panes.attempt(lambda: None, about="start")
        assert reported(screen) == ""
        assert await panes.tried(asyncio.to_thread(fail), "use") is None
        panes.say("wrote another", "done")
        panes.settle("use")
        assert reported(screen).startswith("✓ wrote another")
        await until(pilot, lambda: reported(screen) == "")
        await pilot.press("f5", "T")
        await until(pilot, lambda: "No trained reward model yet; t in Label" in reported(screen))
        reward_model("liked")
        await pilot.press("T")
        await until(pilot, lambda: isinstance(screen.app.screen, ConfirmScreen))
        assert reported(screen) == ""
        screen.notify("it has ended", severity="error")
        await pilot.press("n")
        await until(pilot, lambda: screen.app.screen is screen)
        assert "✖ it has ended" in screen_text(screen), "an error outlives the dialog that it came up in"


async def test_a_run_that_failed_says_why_until_another_starts() -> None:
    fails = True

    def play(emit: Any, control: Control) -> RunEnded:
        return (scripted_run.diverged if fails else scripted_run.wait)(emit, control)

    async with workbench(play) as (screen, pilot):
        await start_run(pilot)
        await until(pilot, lambda: "loss was NaN 3 times in a row" in reported(screen))
        assert "lower optim.policy_lr and resume" in reported(screen)
        assert "✖ failed" in status(screen)
        await pilot.press("f2", "f3")
        assert "loss was NaN" in reported(screen), "it is about the run, and not about a pane"
        screen.panes.say("Imported 2 preferences", "done")
        await pilot.press("escape")
        assert "loss was NaN" in reported(screen), "the key hides the message that is on top"
        fails = False
        await start_run(pilot)
        await until(pilot, lambda: " 1/12" in status(screen))
        assert reported(screen) == ""


async def test_a_question_that_comes_up_over_another_leaves_both_to_be_answered() -> None:
    async with workbench(size=(80, 24)) as (screen, pilot):
        app, answers = screen.app, list[tuple[str, bool | None]]()

        async def ask(name: str) -> None:
            answers.append((name, await app.push_screen_wait(ConfirmScreen(name))))

        for name in ("one", "two"):
            screen.panes.ask(ask(name))
            await until(pilot, lambda name=name: name in screen_text(app.screen))  # type: ignore[misc]
        for key, left in (("y", 1), ("n", 0)):
            await pilot.press(key)
            await until(pilot, lambda left=left: len(app.screen_stack) == 2 + left)  # type: ignore[misc]
        assert answers == [("two", True), ("one", False)]


async def test_why_the_training_of_a_reward_model_failed_stays_in_the_log() -> None:
    async with workbench(size=(80, 24)) as (screen, pilot):
        screen.panes.say("labels-0001: failed: no room", about="training")
        screen.action_show_pane("log")
        await until(pilot, lambda: screen_text(screen).count("labels-0001: failed: no room") == 1)
        await until(pilot, lambda: "Nothing yet" not in screen_text(screen))


async def test_a_screenshot_is_saved_in_the_current_folder_without_a_folder_of_downloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    async with workbench(size=(80, 24)) as (screen, pilot):
        take = next(one.callback for one in screen.app.get_system_commands(screen) if one.title == "Screenshot")
        for name in ("screenshot.svg", "screenshot-2.svg"):
            take()
            await until(pilot, lambda name=name: f"› Saved {name} in the current folder" in screen_text(screen))
            assert Path(name).read_text().startswith("<svg")
        monkeypatch.setattr("workbench.kit.saving.open_file", _full)
        take()
        await until(pilot, lambda: "✖ cannot write 'screenshot-3.svg': No space left on device" in screen_text(screen))


def _full(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_an_error_disappears_when_its_pane_is_left() -> None:
    async with workbench() as (screen, pilot):
        await pilot.press("f5", "t")
        await until(pilot, lambda: "no labels to train on" in reported(screen))
        await pilot.press("f5")
        assert "no labels to train on" in reported(screen)
        await pilot.press("f3")
        assert reported(screen) == ""


async def test_an_obstacle_to_starting_disappears_when_it_is_fixed() -> None:
    async with workbench() as (screen, pilot):
        pane = screen.query_one(ConfigPane)
        pane.document.set("ppo.kl_coef", -1)
        await pilot.press("space")
        await until(pilot, lambda: "The configuration has a problem: " in reported(screen))
        await pilot.press("u")
        await until(pilot, lambda: not pane.document.problems)
        await until(pilot, lambda: reported(screen) == "")


async def test_a_run_trained_here_is_no_obstacle_once_it_has_ended() -> None:
    make_run("past")
    async with workbench(scripted_run.wait) as (screen, pilot):
        await start_run(pilot)
        await until(pilot, lambda: " 1/12" in status(screen))
        await pilot.press("f7")
        await until(pilot, lambda: "past" in screen_text(screen))
        await pilot.press("enter")
        await until(pilot, lambda: "is training here" in reported(screen))
        assert screen.query_one("#home").has_focus_within, "nothing was opened, so nothing else is shown"
        screen.supervisor.stop()
        await until(pilot, lambda: not screen.supervisor.trains_here)
        await until(pilot, lambda: reported(screen) == "")
