"""Dialogs answer with a value, explain themselves, keep what was typed, and can be read in every theme."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import scripted_run
from colors import SPECS
from dialogs import DIALOGS, STORE, no_labels
from label_material import run_with_samples
from label_screens import Host
from scripted_run import Script, make_run
from snapshots import drawn_pieces, written_run
from styles_helper import styles_path
from textual import events
from textual.pilot import Pilot
from textual.screen import ModalScreen, Screen
from textual.widgets import Button, Input, OptionList, Static
from waiting import until
from workbench_app import press_when_asked, screen_text, start_run, status, workbench

from trainer.preferences.records import QueuePlan, SessionPlan, SessionRecord
from workbench.kit.dialog import AnswerScreen, ConfirmScreen, Dialog, Reply, TextPromptScreen
from workbench.kit.footer import KeyFooter
from workbench.kit.help import HelpScreen
from workbench.kit.jump import JumpScreen
from workbench.kit.keys import own_bindings
from workbench.kit.theming import ThemedApp, shipped_themes
from workbench.labelling.dialogs import LabelForm
from workbench.labelling.plans import SessionOptions
from workbench.labelling.start_screen import LabelStartScreen
from workbench.runs.pane import RunsPane
from workbench.screen.dialogs import QuitScreen
from workbench.screen.main_screen import MainScreen
from workbench.system.environment import config_dir

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


@pytest.mark.parametrize("text", ["short [/x]\x1b[31m", "[/x] of many words " * 9 + "\x1b[31m"])
async def test_an_answer_has_one_line_and_a_long_text_is_below_the_list_while_the_cursor_is_on_it(text: str) -> None:
    answers = [Reply(name, name.upper(), f"{name} {text}") for name in "abc"]

    async with asked(AnswerScreen("Which?", answers)) as (app, pilot):

        def shown() -> list[str]:
            lines = ["".join(part.text for part in strip) for strip in app.screen._compositor.render_strips()]
            return [line.strip("│ ") for line in lines]

        place = next(row for row, line in enumerate(shown()) if line.startswith("A  a "))
        for name in "abc":
            lines = shown()
            assert [line[:4] for line in lines[place : place + 3]] == ["A  a", "B  b", "C  c"], "nothing moves"
            below = " ".join(" ".join(lines[place + 3 :]).split())
            assert (f"{name} [/x] of many words" in below and "␛[31m" in below) == (text[0] == "[")
            await pilot.press("down")
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


async def test_a_field_shows_control_characters_also_of_pasted_text_as_symbols_and_a_cancelled_text_is_none() -> None:
    async with asked(TextPromptScreen("Rename to", "old\x1b", no_x)) as (app, pilot):
        app.post_message(events.Paste("a\x1b[31m\tb\nc"))
        await pilot.pause()
        assert app.screen.query_one(Input).value == "a␛[31m␉b", "in place of the first name, which was selected"
        await pilot.press("escape")
        await pilot.pause()
        assert app.answer is None


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
        await until(pilot, lambda: " 1/12" in status(screen))
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


_OFF = "▌X▐"  # a box that is off: its mark is not to be seen
HEX = [name for name, spec in SPECS.items() if not spec.ansi]


def full_start() -> LabelStartScreen:
    """Return the dialog that begins labelling, with a session to resume and a run."""
    plan = SessionPlan(queues=(QueuePlan(queue="samples", source="/runs/a-0001"),))
    session = SessionRecord(id=1, labeller="anna", plan=plan, guidelines="", began=time.time(), items=9, done=3)
    options, begin = SessionOptions(labeller="anna", flagged=("k",)), cast("Any", no_labels)
    return LabelStartScreen([run_with_samples("a-0001")], STORE, [session], options=options, begin=begin)


async def test_every_word_of_every_dialog_can_be_read_as_it_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Letters of the jump mode stand on the screen behind: see test_jump.py.
    dialogs = {kind: make for kind, make in DIALOGS.items() if kind is not JumpScreen} | {LabelStartScreen: full_start}
    faint: dict[tuple[str, str, str], float] = {}
    app = Host()
    for theme in shipped_themes().values():
        app.register_theme(theme)
    async with app.run_test(size=(120, 40)) as pilot:
        for kind, make in dialogs.items():
            app.push_screen(dialog := make())
            await until(pilot, lambda dialog=dialog: app.screen is dialog and dialog.is_mounted)
            for focus in (None, *dialog.query(OptionList)):
                if focus is not None:
                    focus.focus()
                for name in HEX:
                    app.theme = name
                    await pilot._wait_for_screen()
                    await pilot.pause(0)
                    pieces = [piece for child in dialog.children for piece in drawn_pieces(dialog, child.region)]
                    assert pieces, kind
                    found = {
                        text: round(ratio, 2) for text, ratio, least in pieces if ratio < least and text not in _OFF
                    }
                    faint |= {(kind.__name__, name, text): ratio for text, ratio in found.items()}
            dialog.dismiss(None)
            await until(pilot, lambda dialog=dialog: app.screen is not dialog)
    assert faint == {}
