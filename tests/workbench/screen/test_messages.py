"""Messages and dialogs leave in view what the user was reading."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest
from colors import contrast
from rich.segment import Segment
from textual.color import Color
from waiting import until
from workbench_app import screen_text, with_background, workbench

from trainer.errors import UsageError
from workbench.kit.banner import Banner
from workbench.kit.dialog import ConfirmScreen


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


async def test_what_fails_is_said_until_it_succeeds() -> None:
    async with workbench(size=(80, 24)) as (screen, pilot):
        panes, banner = screen.panes, screen.query_one(Banner)

        def fail() -> None:
            raise UsageError("no such run")

        assert not panes.attempt(fail, about="start")
        assert "no such run" in str(banner.render())
        assert panes.attempt(lambda: None, about="start")
        assert not banner.display
        assert await panes.tried(asyncio.to_thread(fail), "use") is None
        assert "no such run" in str(banner.render())
        screen.labelling.request("use")
        await until(pilot, lambda: "No trained reward model yet; t in Label trains one" in str(banner.render()))


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


async def test_a_dialog_shows_the_screen_behind_it_and_a_message_above_it() -> None:
    async with workbench(size=(80, 24)) as (screen, pilot):
        app: Any = screen.app
        await pilot.press("f2")
        before = text_of(with_background(app)[3])
        assert any(map(str.isalpha, before))
        app.push_screen(ConfirmScreen("Move it?"))
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen) and app.screen.query_one("#no").has_focus)
        behind = with_background(app)[3]
        assert text_of(behind) == before
        dialog = next(strip for strip in with_background(app) if "Move it?" in text_of(strip))
        assert max(map(ratio, behind)) < 4.5 <= ratio(next(piece for piece in dialog if "Move it?" in piece.text))
        screen.notify("it has ended", severity="error")
        await until(pilot, lambda: "✖ it has ended" in text_of(with_background(app)[0]))
        assert app.screen.query_one(".dialog").region.y > 1
        await pilot.press("n")
        await until(pilot, lambda: app.screen is screen)
        assert "✖ it has ended" in screen_text(screen), "an error outlives the dialog that it came up in"


def text_of(strip: Any) -> str:
    return "".join(segment.text for segment in strip)


def ratio(segment: Segment) -> float:
    """Return the contrast of a piece of text, 1 where there is none."""
    if segment.style is None or segment.style.color is None or segment.style.bgcolor is None:
        return 1.0
    if not any(map(str.isalpha, segment.text)):
        return 1.0
    color, ground = (Color(*one.get_truecolor()) for one in (segment.style.color, segment.style.bgcolor))
    return contrast(color, ground)
