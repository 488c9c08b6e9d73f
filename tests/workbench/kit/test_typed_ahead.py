"""Keys that arrive together: each acts where the one before it has led."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import Screen
from textual.widgets import Button, Input
from waiting import until
from workbench_app import workbench

from workbench.kit.pane_strip import PaneStrip
from workbench.kit.typed_ahead import TypedAhead
from workbench.log.pane import LogPane
from workbench.runs.pane import RunsPane

KEYS = {"tab": "\t", "slash": "/", "right_parenthesis": ")", "left_parenthesis": "("}


def burst(app: TypedAhead, *keys: str) -> None:
    """Send keys as one read of the terminal."""
    for key in keys:
        app.post_message(events.Key(key, KEYS.get(key, key if len(key) == 1 else None)))


class Fields(Screen[None]):
    BINDINGS = [Binding("f3", "go('second')", "second"), Binding("x", "note", "note")]  # noqa: RUF012
    noted = 0

    def compose(self) -> ComposeResult:
        yield Input(id="first", select_on_focus=False)
        yield Input(id="second", select_on_focus=False)
        yield Button("button", id="button")

    def action_go(self, name: str) -> None:
        self.query_one(f"#{name}").focus()

    def action_note(self) -> None:
        self.noted += 1

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.query_one("#button").focus()


async def test_no_key_of_a_burst_is_lost_or_handled_before_the_focus_has_moved() -> None:
    app = TypedAhead()
    async with app.run_test() as pilot:
        app.push_screen(fields := Fields())
        await until(pilot, lambda: app.is_painted(fields) and app.focused is not None)
        first, second = fields.query_one("#first", Input), fields.query_one("#second", Input)
        words = "the quick brown fox jumps over the lazy dog".replace(" ", "")
        burst(app, "a", "f3", *words, "enter", "x", "x", "f3", "b", "shift+tab", "c")
        await until(pilot, lambda: "c" in first.value)
        assert first.value == "ac"
        assert second.value == words + "b"
        assert fields.noted == 2, "the button let the screen have them"


async def test_a_key_whose_widget_never_finishes_holds_the_others_only_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workbench.kit.typed_ahead._PATIENCE", 0.05)
    app = TypedAhead()
    async with app.run_test() as pilot:
        app.push_screen(fields := Fields())
        await until(pilot, lambda: app.is_painted(fields) and app.focused is not None)
        stuck, second = fields.query_one("#first", Input), fields.query_one("#second", Input)
        with monkeypatch.context() as patch:
            patch.setattr(stuck, "call_later", lambda *_: True)  # and the callback never comes
            burst(app, "a", "f3", "b")
            while second.value != "b":
                await asyncio.sleep(0)
        await until(pilot, lambda: stuck.value == "a" and second.value == "b")


async def test_letters_behind_the_key_of_a_pane_reach_that_pane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PPO_WORKBENCH_CONFIG_DIR", str(tmp_path / "config"))
    async with workbench(size=(80, 24)) as (screen, pilot):
        app, strip = screen.app, screen.query_one(PaneStrip)
        runs, log = screen.query_one(RunsPane), screen.query_one(LogPane)
        assert isinstance(app, TypedAhead)
        burst(app, "f7", "slash", "m", "q", "x")  # the filter of Runs; in Training, q would leave
        await until(pilot, lambda: runs.query_one(Input).value == "mqx")
        burst(app, "escape", "right_parenthesis", "slash", "z", "q")  # then the filter of Log
        await until(pilot, lambda: log.query_one(Input).value == "zq")
        assert strip.current == "log"
        assert screen.is_active
