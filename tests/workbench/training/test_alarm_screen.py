"""The keys for alarms, driven by Pilot over a scripted trainer: open, read, apply, put away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import call, create_autospec

import pytest
import scripted_run
from scripted_run import FIXES, SteeredRun, alarm, make_run
from textual.pilot import Pilot
from textual.widgets import OptionList
from waiting import until
from workbench_app import screen_text, start_run, status, workbench

from trainer.engine.control import Control
from trainer.engine.inbox import Inbox
from trainer.events import Alarm, Event, Fix, Iteration, RunEnded
from trainer.runs.folder import RunFolder
from workbench.kit.banner import Banner
from workbench.kit.dialog import ConfirmScreen
from workbench.labelling.pane import LabelPane
from workbench.screen.main_screen import MainScreen
from workbench.training.alarms import AlarmScreen

HOSTILE = "a\x1b]0;owned\x07\x1b[2J\rb\u202ec[@click=app.quit]d[/x]\ne"


@pytest.fixture(autouse=True)
def _settings_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPO_WORKBENCH_CONFIG_DIR", str(tmp_path / "config"))


class Troubled(SteeredRun):
    """Run that raises alarms, then keeps what is asked of it until it is told to stop."""

    def __init__(self, *alarms: Alarm) -> None:
        super().__init__(lambda _: None)
        self.alarms = alarms
        self.asked: list[Any] = []

    def __call__(self, emit: Callable[[Event], None], control: Control) -> RunEnded:
        self.emit = emit
        control.attach(self)

        def emit_with_alarms(event: Event) -> None:
            emit(event)
            for reported in self.alarms if isinstance(event, Iteration) else ():
                emit(reported)

        return scripted_run.wait(emit_with_alarms, control)

    def handle(self, request: str, *values: Any) -> None:
        self.asked.append(values or request)
        super().handle(request, *values)
        if request == "set":
            self.apply()


@asynccontextmanager
async def troubled(
    *alarms: Alarm, opens: str = "", size: tuple[int, int] = (120, 36)
) -> AsyncIterator[tuple[Troubled, MainScreen, Pilot[str]]]:
    """Start a run and wait for its alarms. opens: a key to press then."""
    run = Troubled(*alarms)
    async with workbench(run, size=size) as (screen, pilot):
        await start_run(pilot)
        await until(pilot, lambda: len(screen.supervisor.view.alarms) == len(alarms))
        await pilot.pause()
        if opens:
            await opened(pilot, opens)
        yield run, screen, pilot


def shown(pilot: Pilot[str]) -> str:
    """Return the terminal's text, whichever screen is on top."""
    return screen_text(pilot.app.screen)  # type: ignore[arg-type]


async def opened(pilot: Pilot[str], key: str) -> None:
    await pilot.press(key)
    await until(pilot, lambda: isinstance(pilot.app.screen, ConfirmScreen if key == "F" else AlarmScreen))
    await pilot.pause()


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (200, 60)])
async def test_one_key_opens_the_newest_alarm_with_evidence_advice_and_fixes(size: tuple[int, int]) -> None:
    async with troubled(alarm(0, code="truncation"), alarm(1), size=size) as (_, screen, pilot):
        assert "⚠ KL high and 1 more" in status(screen)
        assert "! opens" in screen_text(screen)
        await opened(pilot, "exclamation_mark")
        text = shown(pilot)
        for part in (
            "⚠ KL high   iteration 1   1 of 2",
            "KL            24.10 nats/seq",
            "times target  3.013",
            "Raise kl_coef.",
            *(fix.label for fix in FIXES),
            "enter applies it",
        ):
            assert part in text, part
        await pilot.press("right")
        assert "⚠ truncation   iteration 0   2 of 2" in shown(pilot)
        await pilot.press("right", "left")
        assert "1 of 2" in shown(pilot)
        await pilot.press("escape")
        assert pilot.app.screen is screen


@pytest.mark.parametrize(
    ("downs", "asked"),
    [(0, ("ppo.kl_coef", 0.1)), (1, (None, "KL high")), (2, "paused")],
    ids=["set", "rollback", "paused"],
)
async def test_enter_applies_the_highlighted_fix(downs: int, asked: Any) -> None:
    async with troubled(alarm(1), opens="exclamation_mark") as (run, screen, pilot):
        await pilot.press(*["down"] * downs, "enter")
        await until(pilot, lambda: bool(run.asked))
        assert run.asked == [asked]
        if asked != "paused":  # which fixes nothing
            await until(pilot, lambda: screen.supervisor.view.alarms == [])
            assert "opens" not in screen_text(screen)
        banner = screen.query_one(Banner)
        assert banner.has_class("-note"), "no error"
        assert "asked the run to" in str(banner.render())


@pytest.mark.parametrize(("key", "asked"), [("y", True), ("enter", True), ("n", False), ("escape", False)])
async def test_one_key_applies_the_first_fix_once_the_user_agrees(key: str, asked: bool) -> None:
    async with troubled(alarm(1), opens="F") as (run, screen, pilot):
        assert "Raise kl_coef to 0.1?" in shown(pilot)
        assert "KL high: the KL is 24.1" in shown(pilot)
        assert run.asked == []
        await pilot.press(key)
        assert pilot.app.screen is screen
        if asked:
            await until(pilot, lambda: bool(run.asked))
        assert run.asked == ([("ppo.kl_coef", 0.1)] if asked else [])


async def test_a_dismissed_alarm_disappears_and_the_next_is_the_newest() -> None:
    async with troubled(alarm(0, code="truncation"), alarm(1), opens="exclamation_mark") as (run, screen, pilot):
        await pilot.press("y")
        assert pilot.app.clipboard.startswith("⚠ KL high, iteration 1\nthe KL is 24.1 nats a sequence")
        assert "Raise kl_coef." in pilot.app.clipboard
        await pilot.press("D")
        assert [alarm.code for alarm in screen.supervisor.view.alarms] == ["truncation"]
        await pilot.pause()
        assert "⚠ truncation   iteration" in status(screen)
        await opened(pilot, "exclamation_mark")
        await pilot.press("delete")
        await until(pilot, lambda: "⚠" not in status(screen))
        assert run.asked == []


async def test_without_an_alarm_its_keys_do_nothing_and_are_not_offered() -> None:
    async with troubled() as (_, screen, pilot):
        await until(pilot, lambda: len(screen.supervisor.view.history) == 1)
        await pilot.press("exclamation_mark", "F")
        assert pilot.app.screen is screen
        assert not {"exclamation_mark", "F"} & screen.active_bindings.keys()


async def test_an_alarm_without_a_fix_has_advice_alone() -> None:
    async with troubled(alarm(1, fixes=[])) as (_, screen, pilot):
        assert "exclamation_mark" in screen.active_bindings
        await pilot.press("F")
        await until(pilot, lambda: "KL high: no fix can be applied now" in screen_text(screen))
        assert pilot.app.screen is screen
        await opened(pilot, "exclamation_mark")
        assert "Raise kl_coef." in shown(pilot)
        assert "No fix can be applied from here." in shown(pilot)
        assert not pilot.app.screen.query_one(OptionList).display
        await pilot.press("enter", "right", "escape")
        assert pilot.app.screen is screen


def watched(name: str, *alarms: Alarm) -> Path:
    """Make a run on disk with these alarms at its end."""
    folder = make_run(name)
    (folder / "events.jsonl").unlink()
    start = scripted_run.started(name=name, folder=str(folder))
    scripted_run.write_events(folder, start, scripted_run.iteration(1), *alarms)
    return folder


async def test_fixes_reach_a_run_of_another_process_by_its_inbox() -> None:
    folder = watched("elsewhere", alarm(1))
    with RunFolder(folder).lock():
        inbox = Inbox(folder / "control", control := create_autospec(Control, instance=True), pytest.fail)
        async with workbench(watch=folder) as (screen, pilot):
            await until(pilot, lambda: bool(screen.supervisor.view.alarms))
            await pilot.pause()
            await opened(pilot, "F")
            await pilot.press("y")
            await opened(pilot, "exclamation_mark")
            await pilot.press("down", "enter")
            await pilot.pause()
            inbox.take()
    assert control.mock_calls == [call.set("ppo.kl_coef", 0.1), call.rollback(None, "KL high")]


@pytest.mark.parametrize("key", ["exclamation_mark", "F"])
async def test_a_fix_that_no_longer_applies_when_the_user_agrees_changes_nothing(key: str) -> None:
    async with troubled(alarm(1), opens=key) as (run, screen, pilot):
        screen.supervisor.set("ppo.kl_coef", 0.3)
        await until(pilot, lambda: screen.supervisor.view.alarms == [])
        await pilot.press("enter")
        await pilot.pause()
        assert run.asked == [("ppo.kl_coef", 0.3)]
        assert "KL high is no longer active" in str(screen.query_one(Banner).render())


async def test_while_labelling_no_stray_key_applies_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    async with troubled(alarm(1)) as (_, screen, pilot):
        await pilot.press("f5")
        assert screen.check_action("ask", ("alarm",))
        monkeypatch.setattr(screen.query_one(LabelPane), "worker", SimpleNamespace(state=None))
        assert not screen.check_action("ask", ("alarm",))
        assert not screen.check_action("ask", ("fix",))


@pytest.mark.parametrize("size", [(60, 20), (120, 36)])
async def test_hostile_texts_of_an_alarm_are_shown_and_not_obeyed(size: tuple[int, int]) -> None:
    fix = Fix(label=HOSTILE, action="set", key="ppo.kl_coef", value=0.1)
    reported = alarm(1, code=HOSTILE, message=HOSTILE, advice=HOSTILE * 40, evidence={HOSTILE: 1.0}, fixes=[fix])
    async with troubled(reported, size=size) as (_, _, pilot):
        texts = [shown(pilot)]
        await opened(pilot, "exclamation_mark")
        texts.append(shown(pilot))
        await pilot.press("pagedown", "pagedown", "pageup", "escape")
        await opened(pilot, "F")
        texts.append(shown(pilot))
        await pilot.press("escape", "f8")
        await pilot.pause()
        for text in (*texts, shown(pilot)):
            assert "a␛]0;owned␇␛[2J␍b" in text
            assert not {"\x1b", "\x07", "\r", "\u202e"} & set(text)


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (120, 36)])
async def test_a_long_advice_is_read_page_by_page(size: tuple[int, int]) -> None:
    words = " ".join(f"word{number}" for number in range(400))
    alarms = alarm(0, code="other"), alarm(1, advice=words)
    async with troubled(*alarms, opens="exclamation_mark", size=size) as (_, _, pilot):
        for part in ("KL high", *(fix.label for fix in FIXES), "esc closes"):
            assert part in shown(pilot), "these are in sight however long the text"
        assert "word399" not in shown(pilot)
        await pilot.press(*["pagedown"] * 30)
        assert "word399" in shown(pilot)
        await pilot.press(*["pageup"] * 30)
        assert "the KL is 24.1" in shown(pilot)
