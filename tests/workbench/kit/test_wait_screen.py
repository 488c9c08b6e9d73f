"""What is typed while a key's dialog is being read: it is for the dialog, and never a key of the pane below."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import scripted_run
from label_material import reward_model
from scripted_run import Script
from snapshots import written_run
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input, TextArea
from waiting import until
from workbench_app import can_answer, press_when_asked, screen_text, workbench

from workbench.kit.banner import Banner
from workbench.kit.dialog import AnswerScreen, ConfirmScreen, TextPromptScreen
from workbench.kit.typed_ahead import Question
from workbench.kit.wait_screen import WaitScreen
from workbench.labelling.start_screen import LabelStartScreen
from workbench.samples.ask_screen import AskScreen
from workbench.screen.main_screen import MainScreen

MATERIAL = "workbench.screen.labelling_controller.labelling_material"
MODELS = "workbench.screen.reward_models.labelling_material"
SAMPLE = "workbench.samples.pane.read_token_sample"
SETTINGS = "workbench.screen.asking.load_config"


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PPO_WORKBENCH_CONFIG_DIR", str(tmp_path / "config"))


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], threading.Event]]:
    """Hold a function, named by its path, until the event that this returns is set."""
    go_on = threading.Event()

    def hold(path: str) -> threading.Event:
        module, _, name = path.rpartition(".")
        function = getattr(__import__(module, fromlist=[name]), name)

        def waiting(*args: Any) -> Any:
            assert go_on.wait(30)
            return function(*args)

        monkeypatch.setattr(path, waiting)
        return go_on

    yield hold
    go_on.set()


async def waits(screen: MainScreen, pilot: Pilot[str], *keys: str) -> None:
    """Press the keys, the last of which opens a dialog that is still being read."""
    await pilot.press(*keys)
    assert isinstance(screen.app.screen, WaitScreen)


@asynccontextmanager
async def watching() -> AsyncIterator[tuple[MainScreen, Pilot[str]]]:
    """Open the workbench on a run that has ended, with its samples listed."""
    run = Path("runs/past")
    written_run(run)
    async with workbench(Script(scripted_run.wait), watch=run) as (screen, pilot):
        await pilot.press("f4")
        pane = screen.query_one("#samples")
        await until(pilot, lambda: pane.check_action("export", ()) is True)
        yield screen, pilot


async def test_what_is_typed_before_the_dialog_opens_is_text_of_its_field(
    held: Callable[[str], threading.Event],
) -> None:
    script = Script(scripted_run.wait)
    async with workbench(script) as (screen, pilot):
        go_on = held(MATERIAL)
        await waits(screen, pilot, "f5", "enter")
        await pilot.press(*"stq", "space", *"X.jsonl")
        go_on.set()
        await until(pilot, lambda: isinstance(screen.app.screen, LabelStartScreen))
        data = cast("Input", screen.app.screen.query_one("#data"))
        await until(pilot, lambda: data.value == "stq X.jsonl")
        assert not screen.supervisor.trains_here
        assert not screen.query_one(Banner).display
        await pilot.press("escape")
        await until(pilot, lambda: screen.app.screen is screen)


@pytest.mark.parametrize(
    ("reading", "keys", "dialog"),
    [
        (MATERIAL, ["f5", "enter"], LabelStartScreen),
        (MODELS, ["f5", "T"], ConfirmScreen),
        (SAMPLE, ["f4", "p"], AskScreen),
        (SETTINGS, ["f4", "p"], AskScreen),
    ],
)
async def test_no_key_reaches_the_run_while_a_dialog_is_being_read(
    reading: str, keys: list[str], dialog: type[Any], held: Callable[[str], threading.Event]
) -> None:
    reward_model("liked")
    async with watching() as (screen, pilot):
        go_on = held(reading)
        await waits(screen, pilot, *keys)
        await pilot.press("s", "space", "c")
        assert not screen.supervisor.trains_here
        go_on.set()
        await until(pilot, lambda: isinstance(screen.app.screen, dialog))
        await until(pilot, lambda: not isinstance(screen.app.screen, Question) or can_answer(pilot))
        await pilot.press("escape")
        await until(pilot, lambda: screen.app.screen is screen)
        assert not screen.supervisor.trains_here


async def test_what_is_typed_while_a_sample_is_being_read_is_text_of_the_prompt(
    held: Callable[[str], threading.Event],
) -> None:
    async with watching() as (screen, pilot):
        go_on = held(SAMPLE)
        await waits(screen, pilot, "f4", "p")
        await pilot.press(*"stq")
        go_on.set()
        await until(pilot, lambda: isinstance(screen.app.screen, AskScreen))
        await until(pilot, lambda: screen.app.screen.query_one(TextArea).text.endswith("stq"))
        assert not screen.supervisor.trains_here
        await pilot.press("escape")
        await until(pilot, lambda: screen.app.screen is screen)


async def test_escape_cancels_a_long_reading_and_no_dialog_opens(held: Callable[[str], threading.Event]) -> None:
    async with workbench() as (screen, pilot):
        go_on = held(MATERIAL)
        await waits(screen, pilot, "f5", "enter")
        await until(pilot, lambda: "Reading..." in screen_text(cast("MainScreen", screen.app.screen)))
        await pilot.press("s", "escape")
        await until(pilot, lambda: screen.app.screen is screen)
        go_on.set()
        await pilot.press("f5")
        assert screen.app.screen is screen
        assert not screen.supervisor.trains_here


async def test_a_reading_that_fails_leaves_no_keys_behind(held: Callable[[str], threading.Event]) -> None:
    async with workbench() as (screen, pilot):
        go_on = held(MODELS)
        await waits(screen, pilot, "f5", "T")
        await pilot.press("s")
        go_on.set()
        await until(pilot, lambda: "No trained reward model yet" in screen_text(screen))
        await until(pilot, lambda: screen.app.screen is screen)
        await pilot.pause()
        assert not screen.supervisor.trains_here


async def test_between_two_dialogs_of_one_action_no_key_reaches_the_pane() -> None:
    opened: list[str] = []

    async with workbench() as (screen, pilot):
        between = asyncio.Event()

        async def two() -> None:
            await screen.app.push_screen_wait(ConfirmScreen("One?"))
            await between.wait()
            opened.append(str(await screen.app.push_screen_wait(ConfirmScreen("Two?"))))

        screen.app.push_screen(WaitScreen(two))
        await until(pilot, lambda: isinstance(screen.app.screen, ConfirmScreen))
        await press_when_asked(pilot, "y", "s", "y")
        assert isinstance(screen.app.screen, WaitScreen)
        between.set()
        await until(pilot, lambda: isinstance(screen.app.screen, ConfirmScreen))
        await press_when_asked(pilot, "y")
        assert len(opened) == 1, "by the second y, and not by the one that was typed before the question"
        await until(pilot, lambda: opened == ["True"])
        await until(pilot, lambda: screen.app.screen is screen)
        assert not screen.supervisor.trains_here


async def test_a_dialog_that_an_action_opens_without_waiting_stays_open_above_it() -> None:
    async with workbench() as (screen, pilot):
        dialog = ConfirmScreen("Sure?")

        async def ask() -> None:
            screen.app.push_screen(dialog)

        waiting = WaitScreen(ask)
        screen.app.push_screen(waiting)
        await until(pilot, lambda: screen.app.screen is dialog)
        waiting.dismiss(None)  # it has ended
        waiting.post_message(events.ScreenResume())  # on its way since before the dialog opened
        await pilot.pause()
        assert screen.app.screen is dialog
        dialog.dismiss(None)
        await until(pilot, lambda: screen.app.screen is screen)


async def test_a_configuration_is_chosen_without_a_key_for_the_pane_below() -> None:
    async with workbench() as (screen, pilot):
        await pilot.press("f2", "p")
        await until(pilot, lambda: isinstance(screen.app.screen, AnswerScreen))
        assert isinstance(screen.app.screen_stack[-2], WaitScreen)
        await pilot.press("escape")
        await until(pilot, lambda: screen.app.screen is screen)


async def test_text_that_arrives_with_the_key_that_opens_a_dialog_is_text_of_its_field() -> None:
    async with workbench() as (screen, pilot):
        await pilot.press("f5")
        for key in ("enter", "s", "t", "q", "X"):
            screen.app.post_message(events.Key(key, None if key == "enter" else key))  # as one read of the terminal
        await until(pilot, lambda: isinstance(screen.app.screen, LabelStartScreen))
        await until(
            pilot, lambda: cast("LabelStartScreen", screen.app.screen).query_one("#data", Input).value == "stqX"
        )
        assert not screen.supervisor.trains_here


async def test_a_key_typed_in_a_dialog_that_has_closed_since_does_nothing() -> None:
    async with workbench() as (screen, pilot):
        dialog = ConfirmScreen("Sure?")
        screen.app.push_screen(dialog)
        await until(pilot, lambda: screen.app.screen is dialog)
        await pilot.press("left")  # it is painted
        late = events.Key("s", "s")
        await screen.app.on_event(late)  # on its way to the dialog
        dialog.dismiss(None)
        await until(pilot, lambda: screen.app.screen is screen)
        screen.app.post_message(late)  # back from the dialog, which has no such key
        await pilot.pause()
        assert not screen.supervisor.trains_here


async def test_a_dialog_gets_its_keys_in_order_once_it_has_been_painted(monkeypatch: pytest.MonkeyPatch) -> None:
    painted: list[Callable[[], object]] = []
    async with workbench() as (screen, pilot):
        dialog, go_on = TextPromptScreen("Name?", "", str), asyncio.Event()

        async def ask() -> None:
            await go_on.wait()
            await screen.app.push_screen_wait(dialog)

        screen.app.push_screen(WaitScreen(ask))
        await until(pilot, lambda: isinstance(screen.app.screen, WaitScreen))
        await pilot.press("s", "t")
        monkeypatch.setattr(dialog, "call_after_refresh", lambda *call: painted.append(partial(*call)))
        go_on.set()
        await until(pilot, lambda: screen.app.screen is dialog and bool(painted))
        await pilot.press("q", "X")
        assert dialog.query_one(Input).value == ""
        for call in painted:
            call()
        await until(pilot, lambda: dialog.query_one(Input).value == "stqX")
        await pilot.press("escape")
        await until(pilot, lambda: screen.app.screen is screen)
        await pilot.pause()
        assert not screen.supervisor.trains_here


async def test_a_key_that_arrives_twice_opens_its_dialog_once() -> None:
    async with workbench() as (screen, pilot):
        for _ in range(2):
            screen.labelling.label_again(("key",))
        assert [type(one) for one in screen.app.screen_stack].count(WaitScreen) == 1
        await until(pilot, lambda: screen.app.screen is not screen)
        await pilot.press("escape")
