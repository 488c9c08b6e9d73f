"""Small dialogs answer with a value, and cancelling them changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from styles_helper import styles_path
from textual import events
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Button, Input, Static

from workbench.kit.dialog import AnswerScreen, ConfirmScreen, Reply, TextPromptScreen
from workbench.kit.theming import ThemedApp

NOTHING = object()


class Asking(ThemedApp[None]):
    CSS_PATH = styles_path("dialogs.tcss")
    answer: object = NOTHING

    def take(self, answer: object) -> None:
        self.answer = answer


@asynccontextmanager
async def asked(screen: Screen[Any], size: tuple[int, int] = (60, 20)) -> AsyncIterator[tuple[Asking, Pilot[None]]]:
    """Open `screen` in an application."""
    app = Asking()
    async with app.run_test(size=size) as pilot:
        app.push_screen(screen, app.take)
        await pilot.pause()
        yield app, pilot


@pytest.mark.parametrize("text", ["short", "of many words " * 12])
async def test_rules_between_answers_of_several_lines_are_no_answers(text: str) -> None:
    answers = [Reply(name, name.upper(), text) for name in "abc"]
    async with asked(AnswerScreen("Which?", answers)) as (app, pilot):
        lines = ["".join(part.text for part in strip) for strip in app.screen._compositor.render_strips()]
        assert sum("─────" in line for line in lines) == 2 + 2 * (text != "short"), "the frame, and two rules"
        await pilot.press("down", "enter")
        assert app.answer == "b"


@pytest.mark.parametrize(
    ("keys", "answer"),
    [
        (["y"], True),
        ([], True),  # by the mouse
        (["n"], False),
        (["escape"], False),
        (["enter"], False),
        (["right", "enter"], True),
        (["right", "left", "enter"], False),
    ],
)
async def test_a_question_is_answered_by_key_and_by_button(keys: list[str], answer: bool) -> None:
    async with asked(ConfirmScreen("Move it?", "It can be moved back.", "Move", "Keep")) as (app, pilot):
        await (pilot.press(*keys) if keys else pilot.click("#yes"))
        await pilot.pause()
        assert app.answer is answer
        assert not isinstance(app.screen, ConfirmScreen)


@pytest.mark.parametrize("size", [(40, 20), (80, 24)])
async def test_hostile_text_in_a_question_is_text_and_the_buttons_stay_visible(size: tuple[int, int]) -> None:
    screen = ConfirmScreen("Move [/x] \x1b[31m?", "[@click=app.quit]go[/]", "[/yes]", "[no")
    async with asked(screen, size) as (app, _):
        assert "[/x] ␛[31m?" in str(app.screen.query_one(".question", Static).render())
        assert "[@click=app.quit]go[/]" in str(app.screen.query_one(".detail", Static).render())
        for button in app.screen.query(Button):
            assert app.screen.region.contains_region(button.region)
            assert button.region.width >= len(str(button.label))
        assert "[/yes]" in str(app.screen.query_one("#yes", Button).label)


def no_x(text: str) -> str:
    return "no x allowed [/x]" if "x" in text else ""


async def test_a_text_is_refused_with_its_problem_until_it_is_fixed() -> None:
    async with asked(TextPromptScreen("Rename to", "old", no_x)) as (app, pilot):
        await pilot.press("end", "x", "enter")
        await pilot.pause()
        assert app.answer is NOTHING
        assert app.screen.query_one(Input).value == "oldx"
        assert "no x allowed [/x]" in str(app.screen.query_one(".detail", Static).render())
        await pilot.press("backspace")
        await pilot.pause()
        assert "no x allowed" not in str(app.screen.query_one(".detail", Static).render())
        await pilot.press("enter")
        await pilot.pause()
        assert app.answer == "old"


async def test_a_cancelled_text_is_none() -> None:
    async with asked(TextPromptScreen("Rename to", "old\x1b[31m", no_x)) as (app, pilot):
        assert "\x1b" not in app.screen.query_one(Input).value
        await pilot.press("escape")
        await pilot.pause()
        assert app.answer is None


async def test_a_field_shows_the_controls_of_pasted_text_as_symbols() -> None:
    async with asked(TextPromptScreen("Rename to", "", no_x)) as (app, pilot):
        app.post_message(events.Paste("a\x1b[31m\tb\nc"))
        await pilot.pause()
        assert app.screen.query_one(Input).value == "a␛[31m␉b"
