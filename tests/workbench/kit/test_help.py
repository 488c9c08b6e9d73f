"""The help screen: made from the bindings of the focused pane, as remapped; searched, scrolled and closed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar

import pytest
from styles_helper import styles_path
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Input, Static
from waiting import until
from workbench_app import workbench

from workbench.kit.dialog import Dialog
from workbench.kit.help import (
    EVERYWHERE,
    FOCUSED,
    DocScreen,
    HelpRow,
    HelpScreen,
    about,
    help_rows,
)
from workbench.kit.pane import Pane
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


def by_id(rows: list[HelpRow]) -> dict[str, HelpRow]:
    return {row.description: row for row in rows}


def shown(app: App[None]) -> str:
    return "\n".join("".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips())


async def test_rows_are_the_panes_then_everywhere_with_the_keys_of_each() -> None:
    async with (app := Probe()).run_test() as pilot:
        app.query_one("#chart").focus()
        await pilot.pause()
        rows = help_rows(app, app.query_one(OnePane))
        assert [row.description for row in rows if row.group == "One"] == ["log scale", "down", "nothing"]
        assert by_id(rows)["down"] == HelpRow("One", "j ^n", "down", "The next one", True)
        assert by_id(rows)["pause"] == HelpRow(EVERYWHERE, "space", "pause", "Hold the run", True)
        assert "two" not in by_id(rows)
        assert not by_id(rows)["nothing"].in_force
        assert [row.group for row in rows] == sorted(
            (row.group for row in rows), key=["One", EVERYWHERE, FOCUSED].index
        )


async def test_keys_and_what_they_do_are_two_columns_with_those_that_do_not_work_now_last() -> None:
    async with (app := Probe()).run_test(size=(100, 60)) as pilot:
        app.query_one("#chart").focus()
        await pilot.press("f1")
        lines = shown(app).splitlines()
        texts = ("Logarithmic axis", "The next one", "Hold the run", "This help", "Unavailable now", "Never applies")
        places = [next((row, line.index(text)) for row, line in enumerate(lines) if text in line) for text in texts]
        assert places == sorted(places), "in this order"
        assert len({column for _, column in places}) == 1
        starts = {len(line) - len(line[1:].lstrip()) for line in (lines[row] for row, _ in places[:4])}
        assert len(starts) == 1


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


async def test_a_key_that_a_pane_takes_over_from_the_app_applies_to_that_pane_alone() -> None:
    async with (app := Probe()).run_test() as pilot:
        app.query_one("#other").focus()
        await pilot.pause()
        rows = by_id(help_rows(app, app.query_one(TwoPane)))
        assert (rows["spread"].in_force, rows["pause"].in_force) == (True, False)


async def test_while_text_is_typed_the_panes_letters_are_listed_as_not_now() -> None:
    async with (app := Probe()).run_test() as pilot:
        app.query_one("#field").focus()
        await pilot.pause()
        rows = by_id(help_rows(app, app.query_one(OnePane)))
        assert not rows["pause"].in_force
        assert rows["help"].in_force
        assert rows["down"].in_force  # by its other key
        assert not rows["log scale"].in_force  # of a widget beside the focused one
        assert any(row.group == FOCUSED for row in rows.values())
        assert not any("Scroll" in row.description for row in rows.values())  # what every widget binds


async def test_keys_are_shown_as_remapped() -> None:
    async with (app := Probe()).run_test() as pilot:
        app.set_keymap({"run.pause": "p", "one.down": "question_mark"})
        app.query_one("#chart").focus()
        await pilot.pause()
        rows = by_id(help_rows(app, app.query_one(OnePane)))
        assert (rows["pause"].keys, rows["pause"].in_force) == ("p", True)
        assert (rows["down"].keys, rows["down"].in_force) == ("?", True)


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
        assert "w search   ⏎ read more   x close" in shown(app)
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


async def test_at_60x20_every_row_can_be_scrolled_to_and_none_is_cut() -> None:
    async with (app := Probe()).run_test(size=(60, 20)) as pilot:
        app.query_one("#chart").focus()
        await pilot.press("f1")
        assert app.screen.query_one("#help-rows").region.width < 60
        seen = shown(app)
        body = app.screen.query_one(VerticalScroll)
        assert body.max_scroll_y > 0
        while body.scroll_y < body.max_scroll_y:
            before = body.scroll_y
            await pilot.press("pagedown")
            assert body.scroll_y > before
            seen += shown(app)
        assert {row.description for row in help_rows(app, None)} >= {"close", "search"}
        for text in ("Logarithmic axis", "Hold the run", *(f"f{n} " for n in range(2, 12))):
            assert text in seen
        assert sum(line.count("Go there") for line in seen.splitlines()) >= 9 * 10
        await pilot.press("home")
        assert body.scroll_y == 0


async def test_enter_reads_the_page_of_the_pane_and_escape_returns_to_the_help() -> None:
    async with (app := Probe()).run_test(size=(100, 30)) as pilot:
        await pilot.press("f1", "enter")
        await until(pilot, lambda: isinstance(app.screen, DocScreen))
        await pilot.press("escape")
        assert isinstance(app.screen, HelpScreen)
