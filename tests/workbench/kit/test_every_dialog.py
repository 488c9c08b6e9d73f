"""Rules of every dialog: help, escape and quit work in it, and it keeps typed text until it is done."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import scripted_run
from dialogs import DIALOGS
from scripted_run import Script, make_run
from snapshots import written_run
from textual.pilot import Pilot
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, OptionList
from waiting import until
from workbench_app import press_when_asked, screen_text, settle, start_run, status, workbench

from workbench.kit.dialog import AnswerScreen, Dialog, TextPromptScreen
from workbench.kit.footer import KeyFooter
from workbench.kit.help import HelpScreen
from workbench.kit.keys import own_bindings
from workbench.labelling.dialogs import LabelForm
from workbench.runs.pane import RunsPane
from workbench.screen.dialogs import QuitScreen
from workbench.screen.main_screen import MainScreen
from workbench.system.environment import config_dir


def ours(kind: type[Screen[Any]]) -> Iterator[type[Screen[Any]]]:
    """Return all workbench classes that derive from `kind`."""
    for found in kind.__subclasses__():
        if found.__module__.startswith("workbench."):
            yield found
        yield from ours(found)


def test_every_modal_screen_is_a_dialog_that_these_tests_know() -> None:
    list(own_bindings())  # imports every module that has one
    assert set(ours(ModalScreen)) == {Dialog, LabelForm, HelpScreen, *DIALOGS}


@pytest.mark.usefixtures("hurried")
async def test_help_escape_and_quit_work_in_every_dialog() -> None:
    async with workbench(scripted_run.wait) as (screen, pilot):
        await start_run(pilot)
        await until(pilot, lambda: "iteration 1/12" in status(screen))
        app = screen.app
        for kind, make in DIALOGS.items():
            app.push_screen(dialog := make())
            await until(pilot, lambda dialog=dialog: app.screen is dialog and bool(dialog.query(KeyFooter)))
            footer = dialog.query_one(KeyFooter)
            await until(pilot, lambda footer=footer: "quit" in str(footer.content))
            typing = app.focused is not None and app.focused.check_consume_key("q", "q")
            end = str(footer.content).rpartition("▏")[2] or str(footer.content)
            assert [end.split()[place] for place in (0, -4, -2)] == [
                "esc",
                *(("f1", "^q") if typing else ("?", "q")),
            ], kind
            await pilot.press("f1")
            await until(pilot, lambda: isinstance(app.screen, HelpScreen))
            await pilot.press("f1")
            await until(pilot, lambda dialog=dialog: app.screen is dialog and bool(dialog.query(KeyFooter)))
            await pilot.press("ctrl+q")
            await until(pilot, lambda dialog=dialog: app.screen is not dialog)
            assert isinstance(app.screen, QuitScreen), kind
            await press_when_asked(pilot, "ctrl+q", "q", "escape")
            await until(pilot, lambda dialog=dialog: app.screen is dialog and bool(dialog.query(KeyFooter)))
            await pilot.press("escape")
            await until(pilot, lambda: app.screen is screen)
        assert screen.supervisor.trains_here


async def test_remapped_keys_work_in_dialogs_and_are_the_ones_they_name(tmp_path: Path) -> None:
    config_dir().mkdir(parents=True)
    keys = '[keys]\n"app.help" = "f9"\n"app.leave" = "f10"\n"prompt.cancel" = "f12"\n"pane.runs" = "f11"\n'
    (config_dir() / "keys.toml").write_text(keys)
    async with workbench() as (screen, pilot):
        app = screen.app
        await pilot.press("f11")
        await pilot.pause()
        assert screen.query_one("#home").display
        app.push_screen(dialog := DIALOGS[TextPromptScreen]())
        await until(pilot, lambda: "F12 cancel" in screen_text(cast("MainScreen", dialog)))
        for _ in range(2):
            await pilot.press("f9")
            await until(pilot, lambda: isinstance(app.screen, HelpScreen))
            await pilot.press("f9")
            await until(pilot, lambda: app.screen is dialog)
        await pilot.press("f10")
        await until(pilot, lambda: not app.is_running)


async def typed(pilot: Pilot[str], keys: list[str], text: str) -> None:
    """Open the dialog by `keys`, and put `text` into its first line."""
    await pilot.press(*keys)
    main = pilot.app.screen_stack[1]
    await until(pilot, lambda: pilot.app.screen is not main and bool(pilot.app.screen.query(Input)))
    line = pilot.app.screen.query(Input).first()
    line.value = text
    line.focus()
    await pilot.pause()


async def rename(pilot: Pilot[str]) -> None:
    await pilot.press("f7")
    pane = pilot.app.screen.query_one(RunsPane)
    await until(pilot, lambda: pane.selected is not None)
    assert pane.selected is not None
    await typed(pilot, ["e"], "past" if pane.selected.name == "other" else "other")


async def open_file(pilot: Pilot[str]) -> None:
    Path("bytes.toml").write_bytes(b"\xff")
    await pilot.press("f2", "p")
    await until(pilot, lambda: isinstance(pilot.app.screen, AnswerScreen))
    pilot.app.screen.query_one(OptionList).action_last()
    await pilot.press("enter")
    await typed(pilot, [], "bytes.toml")


async def export_samples(pilot: Pilot[str]) -> None:
    await pilot.press("f4")
    pane = pilot.app.screen.query_one("#samples")
    await until(pilot, lambda: pane.check_action("export", ()) is True)
    await pilot.press("x")
    await until(pilot, lambda: isinstance(pilot.app.screen, AnswerScreen))
    await typed(pilot, ["enter"], "/proc/nowhere/a.jsonl")


PROVOKED: dict[str, tuple[Callable[[Pilot[str]], Awaitable[None]], str]] = {
    "rename": (rename, "exists already: choose another name"),
    "save as": (lambda pilot: typed(pilot, ["f2", "W"], "/proc/nowhere/a.toml"), "cannot write"),
    "open": (open_file, "UTF-8"),
    "export samples": (export_samples, "cannot write '/proc/nowhere/a.jsonl'"),
    "import": (lambda pilot: typed(pilot, ["f5", "i"], "nowhere.jsonl"), "nowhere.jsonl"),
    "export": (lambda pilot: typed(pilot, ["f5", "x"], "a.jsonl"), "preferences.db"),
}


@pytest.mark.parametrize("name", PROVOKED)
async def test_a_dialog_stays_on_an_error_and_nothing_that_is_typed_reaches_the_run(name: str) -> None:
    provoke, problem = PROVOKED[name]
    written_run(Path("runs/past"))
    make_run("other")
    script = Script(scripted_run.done)
    async with workbench(script, watch=Path("runs/past")) as (screen, pilot):
        await until(pilot, lambda: "past" in status(screen) or "quickstart" in status(screen))
        await provoke(pilot)
        dialog = pilot.app.screen
        await pilot.press("enter")
        await until(pilot, lambda: problem in " ".join(screen_text(cast("MainScreen", dialog)).split()))
        assert pilot.app.screen is dialog
        await pilot.press("end", "s", "x", "space", "X", "q")
        await pilot.pause()
        assert pilot.app.screen is dialog
        line = pilot.app.focused
        assert isinstance(line, Input)
        assert line.value.endswith("sx Xq")
        assert script.received == {}


@pytest.mark.usefixtures("hurried")
async def test_the_focus_survives_every_resize_of_a_dialog() -> None:
    written_run(Path("runs/past"))
    chance = random.Random(0)
    async with workbench(size=(120, 40)) as (screen, pilot):
        for kind, make in DIALOGS.items():
            screen.app.push_screen(dialog := make())
            await until(pilot, lambda dialog=dialog: screen.app.screen is dialog and dialog.is_mounted)
            await settle(pilot)
            focused = dialog.focused
            for size in [(chance.randint(20, 250), chance.randint(5, 70)) for _ in range(3)]:
                await pilot.resize_terminal(*size)
                await pilot.pause()
                assert (dialog.focused is None) == (focused is None), (kind, size)
            await pilot.resize_terminal(120, 40)
            await pilot.pause()
            assert dialog.focused is focused, kind
            dialog.dismiss(None)
            await until(pilot, lambda: screen.app.screen is screen)
