"""The help screen and the pages, made from the bindings and docs; letters of the jump mode."""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar

import pytest
from styles_helper import styles_path
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Input, Markdown, Static
from waiting import until
from workbench_app import screen_text, workbench

from workbench.kit.dialog import ConfirmScreen, Dialog
from workbench.kit.help import (
    EVERYWHERE,
    FOCUSED,
    DocScreen,
    HelpRow,
    HelpScreen,
    about,
    find_pages,
    help_rows,
    pages,
)
from workbench.kit.jump import LETTERS, JumpScreen
from workbench.kit.pane import Pane
from workbench.kit.pane_strip import TopLines
from workbench.kit.theming import ThemedApp


class Chart(Static, can_focus=True):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "log_scale", "log scale", id="training.log", tooltip="Logarithmic axis")
    ]


class OnePane(Pane):
    TITLE = "One"
    HELP = "What one is for. [/x] [@click=app.quit]"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,ctrl+n", "down", "down", id="one.down", tooltip="The next one"),
        Binding("n", "nothing", "nothing", id="one.nothing", tooltip="Never applies"),
    ]

    def compose(self) -> ComposeResult:
        yield Input(id="field")
        yield Chart(id="chart")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "nothing"


class TwoPane(Pane):
    TITLE = "Two"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("t", "two", "two", id="two.two", tooltip="Only here"),
        Binding("space", "spread", "spread", id="two.spread", tooltip="Instead of the app's"),
    ]

    def compose(self) -> ComposeResult:
        yield Chart(id="other")


class Form(Dialog[None]):
    TITLE = "Form"
    HELP = "What one fills in; {form.send} sends it."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+r", "send", "send", id="form.send", tooltip="Sends the form"),
    ]

    def compose(self) -> ComposeResult:
        yield Input()

    def action_send(self) -> None: ...


class Probe(ThemedApp[None]):
    CSS_PATH = styles_path("help.tcss")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "pause", "pause", id="run.pause", tooltip="Hold the run"),
        Binding("f1", "help", "help", id="app.help", tooltip="This help"),
        *(Binding(f"f{n}", f"pane({n})", f"pane {n}", id=f"pane.{n}", tooltip="Go there " * 9) for n in range(2, 12)),
    ]

    def compose(self) -> ComposeResult:
        yield OnePane()
        yield TwoPane()

    def action_help(self) -> None:
        HelpScreen.toggle(self)


def shown(app: App[None]) -> str:
    return "\n".join("".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips())


async def test_rows_are_the_panes_then_everywhere_with_the_keys_of_each_and_whether_they_work_now() -> None:
    async with (app := Probe()).run_test() as pilot:
        one, two = app.query_one(OnePane), app.query_one(TwoPane)

        async def rows_at(widget: str, pane: Pane) -> dict[str, HelpRow]:
            app.query_one(widget).focus()
            await pilot.pause()
            return {row.description: row for row in help_rows(app, pane)}

        rows = await rows_at("#chart", one)
        groups = [row.group for row in rows.values()]
        assert groups == sorted(groups, key=["One", EVERYWHERE, FOCUSED].index)
        assert [row.description for row in rows.values() if row.group == "One"] == ["log scale", "down", "nothing"]
        assert rows["down"] == HelpRow("One", "j ^n", "down", "The next one", True)
        assert rows["pause"] == HelpRow(EVERYWHERE, "space", "pause", "Hold the run", True)
        assert "two" not in rows
        assert not rows["nothing"].in_force
        rows = await rows_at("#other", two)
        assert (rows["spread"].in_force, rows["pause"].in_force) == (True, False), "the pane takes over its key"
        rows = await rows_at("#field", one)
        assert not rows["pause"].in_force, "text is typed"
        assert rows["help"].in_force
        assert rows["down"].in_force, "by its other key"
        assert not rows["log scale"].in_force, "of a widget beside the focused one"
        assert any(row.group == FOCUSED for row in rows.values())
        assert not any("Scroll" in name for name in rows), "what every widget binds"
        app.set_keymap({"run.pause": "p", "one.down": "question_mark"})
        rows = await rows_at("#chart", one)
        assert (rows["pause"].keys, rows["pause"].in_force) == ("p", True)
        assert (rows["down"].keys, rows["down"].in_force) == ("?", True)


async def test_keys_and_what_they_do_are_two_columns_with_those_that_do_not_work_now_last() -> None:
    async with (app := Probe()).run_test(size=(100, 60)) as pilot:
        app.query_one("#chart").focus()
        await pilot.press("f1")
        lines = shown(app).splitlines()
        texts = ("Logarithmic axis", "The next one", "Hold the run", "This help", "Unavailable now", "Never applies")
        places = [next((row, line.index(text)) for row, line in enumerate(lines) if text in line) for text in texts]
        assert places == sorted(places), "in this order"
        heading = places.pop(4)
        assert heading[1] == next(line.index("One") for line in lines if line.strip("│ ").startswith("One"))
        assert len({column for _, column in places}) == 1
        starts = {len(line) - len(line[1:].lstrip()) for line in (lines[row] for row, _ in places[:4])}
        assert starts == {heading[1]}, "the keys are below their headings"


async def test_a_wide_help_has_its_keys_in_two_aligned_columns_and_lacks_none() -> None:
    async with (app := Probe()).run_test(size=(140, 60)) as pilot:
        app.query_one("#chart").focus()
        await pilot.press("f1")

        def columns() -> set[int]:
            places = {
                n: [line.index(f" f{n} ") for line in shown(app).splitlines() if f" f{n} " in line]
                for n in range(1, 12)
            }
            assert all(places.values())
            return {place for found in places.values() for place in found}

        assert len(columns()) == 2
        await pilot.resize_terminal(100, 60)
        await until(pilot, lambda: len(columns()) == 1)


async def test_the_help_of_a_dialog_is_about_the_dialog_even_while_text_is_typed() -> None:
    async with (app := Probe()).run_test(size=(100, 60)) as pilot:
        app.push_screen(Form())
        await until(pilot, lambda: isinstance(app.focused, Input))
        await pilot.press("f1")
        text = shown(app)
        assert "Help: Form" in text
        assert "What one fills in; ^r sends it." in text
        assert text.index("What one fills in") < text.index("Sends the form") < text.index(EVERYWHERE)
        assert text.index(EVERYWHERE) < text.index(FOCUSED)


async def test_it_explains_the_pane_that_has_the_focus_until_a_closing_key() -> None:
    async with (app := Probe()).run_test(size=(100, 40)) as pilot:
        for widget, title, key, close in (
            ("#chart", "Help: One", "The next one", "escape"),
            ("#other", "Help: Two", "Only here", "f1"),
            ("#other", "Help: Two", "Only here", "question_mark"),
        ):
            app.query_one(widget).focus()
            await pilot.press("f1")
            assert title in shown(app)
            assert key in shown(app)
            assert ("[/x] [@click=app.quit]" in shown(app)) == (title == "Help: One"), "its text is never markup"
            await pilot.press(close)
            assert not isinstance(app.screen, HelpScreen)
        app.set_keymap({"help.close": "x", "help.search": "w"})
        await pilot.press("f1")
        await until(pilot, lambda: all(key in shown(app) for key in ("w search", "⏎ read more", "x close")))
        await pilot.press("x")
        assert not isinstance(app.screen, HelpScreen)


async def test_the_keys_that_a_pane_explains_are_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with workbench() as (screen, _):
        texts = {pane.id: about(pane) for pane in screen.query(Pane)}
        assert not [text for text in texts.values() if re.search(r"\{[a-z-]+\.", text)], "every id is a binding"
        assert "; r lists the whole run. ⏎ opens a sample" in texts["samples"]
        assert "← and → choose another" in texts["reward-model"]
        screen.app.set_keymap({"samples.whole-run": "y", "tokens.choose": "z", "config.edit": "j", "label.tie": "x"})
        texts = {pane.id: about(pane) for pane in screen.query(Pane)}
        assert "; y lists the whole run." in texts["samples"]
        assert "z on a token" in texts["samples"]
        assert "j edits the value under the cursor" in texts["config"]
        assert "with x between equally good ones" in texts["label"]


async def test_typing_in_the_search_narrows_the_rows_and_takes_letters_as_text() -> None:
    async with (app := Probe()).run_test(size=(100, 40)) as pilot:
        app.query_one("#chart").focus()
        await pilot.press("f1", "slash", *"quit")
        assert isinstance(app.screen, HelpScreen)
        assert app.screen.query_one(Input).value == "quit"
        await pilot.press(*["backspace"] * 4, *"RUN hold")
        assert "Hold the run" in shown(app)
        assert "The next one" not in shown(app)
        await pilot.press("enter")
        assert isinstance(app.focused, VerticalScroll)
        await pilot.press("slash", *"[/x]")
        assert "No keys match [/x]." in shown(app)
        app.screen.query_one(Input).value = "\x1b[31m"
        await pilot.pause()
        assert "No keys match ␛[31m." in shown(app)
        await pilot.press("escape")
        assert not isinstance(app.screen, HelpScreen)


async def test_enter_reads_the_page_of_the_pane_and_escape_returns_to_the_help() -> None:
    async with (app := Probe()).run_test(size=(100, 30)) as pilot:
        await pilot.press("f1", "enter")
        await until(pilot, lambda: isinstance(app.screen, DocScreen))
        await pilot.press("escape")
        assert isinstance(app.screen, HelpScreen)


async def test_a_page_is_found_by_its_words_and_a_link_leads_to_another() -> None:
    async with workbench() as (screen, pilot):
        app = screen.app
        assert {pane.DOCS for pane in screen.query(Pane)} <= {*pages()}
        found = await find_pages(screen, "keys.toml preset")  # type: ignore[arg-type]
        assert "workbench" in [one.name for one in found]
        next(one for one in found if one.name == "workbench").open()
        await until(pilot, lambda: isinstance(app.screen, DocScreen))
        await until(pilot, lambda: "The workbench" in screen_text(app.screen))  # type: ignore[arg-type]
        page = app.screen.query_one(Markdown)
        page.post_message(Markdown.LinkClicked(page, "keys.md#main-screen"))
        await until(pilot, lambda: "This page is printed by" in screen_text(app.screen))  # type: ignore[arg-type]
        assert app.screen.query_one(VerticalScroll).scroll_y == 0
        page.post_message(Markdown.LinkClicked(page, "../../etc/passwd"))
        await until(pilot, lambda: "../../etc/passwd is not a page" in screen_text(app.screen))  # type: ignore[arg-type]
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is screen)


async def test_a_letter_goes_to_its_pane_or_control_at_every_size_and_in_dialogs() -> None:
    async with workbench() as (screen, pilot):
        app, strip = screen.app, screen.query_one(TopLines)
        for size, number in (((80, 24), 4), ((120, 40), 1), ((200, 60), 2)):
            await pilot.resize_terminal(*size)
            await pilot.press("ctrl+o")
            await until(pilot, lambda: isinstance(app.screen, JumpScreen))
            letters = [letter for letter in app.screen.query(".letter").results(Static) if letter.region.area]
            assert len(letters) == len(app.screen.query(".letter")) > len(strip.places)
            assert letters[number].region.offset == (strip.places[number][1], 0)
            await pilot.press(LETTERS[number])
            await until(pilot, lambda number=number: strip.current == strip.places[number][0].id)  # type: ignore[misc]
        await pilot.press("ctrl+o")
        await until(pilot, lambda: isinstance(app.screen, JumpScreen))
        for key, pane in (("f4", "samples"), ("right_parenthesis", "label"), ("left_parenthesis", "samples")):
            await pilot.press(key, "ctrl+o")
            await until(pilot, lambda pane=pane: strip.current == pane and isinstance(app.screen, JumpScreen))  # type: ignore[misc]
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is screen)
        app.push_screen(dialog := ConfirmScreen("Sure?"))
        await until(pilot, lambda: app.screen is dialog and app.focused is not None)
        await pilot.press("ctrl+o")
        await until(pilot, lambda: isinstance(app.screen, JumpScreen))
        await pilot.press(LETTERS[1])
        await until(pilot, lambda: app.screen is dialog and app.focused is not None and app.focused.id == "yes")
        await pilot.press("ctrl+o", "escape", "escape")
        await until(pilot, lambda: app.screen is screen)
