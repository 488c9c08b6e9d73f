"""Guidelines and notes: text is shown literally and never obeyed, and typed text is kept."""

from __future__ import annotations

import pytest
from label_screens import HOSTILE, NOTHING, SIZES, is_obeyed, opened, text_of
from textual import events
from textual.widgets import TextArea
from waiting import until

from workbench.labelling.session_dialogs import GuidelinesScreen, NoteScreen

LONG = "\n".join(f"Rule {number}: {HOSTILE} " + "words " * 40 for number in range(2_000))


@pytest.mark.parametrize(("key", "answer"), [("enter", True), ("escape", False), ("g", False)])
async def test_guidelines_are_closed_by_a_key(key: str, answer: bool) -> None:
    async with opened(GuidelinesScreen("Be fair.", begin=True)) as (app, pilot):
        assert "Be fair." in text_of(app)
        assert "starts labelling" in text_of(app)
        await pilot.press(key)
        await until(pilot, lambda: app.answer is not NOTHING)
        assert app.answer is answer


@pytest.mark.parametrize("size", SIZES)
async def test_long_and_hostile_guidelines_are_scrolled_and_leave_the_keys_visible(size: tuple[int, int]) -> None:
    async with opened(GuidelinesScreen(LONG), size) as (app, pilot):
        shown = text_of(app)
        assert "Rule 0: [/x] ␛[31m [@click" in shown
        assert "closes" in shown
        assert not is_obeyed(shown)
        await pilot.press("pagedown", "pagedown")
        await until(pilot, lambda: "words" in text_of(app) and "Rule 0:" not in text_of(app))
        await pilot.press("x", "backspace")
        assert app.screen.query_one(TextArea).text.count("Rule") == 2_000


@pytest.mark.parametrize("key", ["enter", "escape"])
async def test_a_note_is_kept_whichever_way_it_is_left(key: str) -> None:
    async with opened(NoteScreen("was")) as (app, pilot):
        await pilot.press("space", *"good", key)
        await until(pilot, lambda: app.answer is not NOTHING)
        assert app.answer == "was good"


async def test_a_note_may_have_lines_and_be_emptied() -> None:
    async with opened(NoteScreen("")) as (app, pilot):
        await pilot.press("a", "ctrl+j", "b", "enter")
        await until(pilot, lambda: app.answer is not NOTHING)
        assert app.answer == "a\nb"
    async with opened(NoteScreen("was")) as (app, pilot):
        await pilot.press("backspace", "backspace", "backspace", "enter")
        await until(pilot, lambda: app.answer is not NOTHING)
        assert app.answer == ""


async def test_an_unchanged_note_gives_none() -> None:
    for note in ("", "was", "one\r\ntwo\x1b"):
        async with opened(NoteScreen(note)) as (app, pilot):
            await pilot.press("x", "backspace", "escape")
            await until(pilot, lambda: app.answer is not NOTHING)
            assert app.answer is None


@pytest.mark.parametrize("size", SIZES)
async def test_control_characters_of_a_note_are_shown_and_kept(size: tuple[int, int]) -> None:
    async with opened(NoteScreen(HOSTILE), size) as (app, pilot):
        assert not is_obeyed(text_of(app))
        app.post_message(events.Paste("\x1b[2J"))
        await until(pilot, lambda: "␛[2J" in text_of(app))
        assert not is_obeyed(text_of(app))
        await pilot.press("!", "enter")
        await until(pilot, lambda: app.answer is not NOTHING)
        assert app.answer.startswith(HOSTILE)
        assert app.answer.endswith("!")
