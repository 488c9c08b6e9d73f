"""A run outlives its screen: bugs in every pane and widget while it trains, and the end of the application itself."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import scripted_run
from apart import ROOT
from terminal_helper import Terminal
from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Button, Input, OptionList, Static, TextArea
from waiting import until
from workbench_app import screen_text, start_run, status, workbench

from trainer.engine.control import Control
from trainer.events import CheckpointSaved, RunEnded
from trainer.runs.journal import read_journal
from workbench.app import WorkbenchApp
from workbench.cli import ui
from workbench.kit.banner import Banner
from workbench.kit.pane import Pane
from workbench.log.pane import LogPane
from workbench.opening import Opening
from workbench.system.signals import REASONS


def raising(text: str) -> Callable[..., Any]:
    """Return a function with a bug in a file of its own, as each bug of the program has its own place."""
    code: dict[str, Any] = {}
    exec(compile(f"def broken(*_, **__):\n    raise ZeroDivisionError({text!r})", f"<{text}>", "exec"), code)
    function: Callable[..., Any] = code["broken"]
    return function


def until_end(emit: Callable[..., None], control: Control) -> RunEnded:
    """Play iterations until the file `end` exists; then the run is done."""
    emit(scripted_run.started(iterations=1000))
    number = 0
    while not Path("end").exists():
        control.check()
        emit(scripted_run.iteration(number := number + 1))
        threading.Event().wait(0.01)
    emit(end := scripted_run.ended("done", number))
    return end


def kinds_of_panes() -> list[type[Pane]]:
    kinds = Pane.__subclasses__()
    for kind in kinds:
        kinds += kind.__subclasses__()
    return [kind for kind in kinds if kind.__module__.startswith("workbench.")]


async def test_a_run_reaches_its_end_though_no_pane_can_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    log, bugs = Path("workbench.log"), []
    log.touch()
    async with workbench(until_end, log=log, bugs=bugs) as (screen, pilot):
        await start_run(pilot)
        await until(pilot, lambda: screen.supervisor.view.iteration > 0)
        shown = list(screen.query(Pane))
        assert {type(pane) for pane in shown} == {*kinds_of_panes()}
        for pane in shown:
            monkeypatch.setattr(type(pane), "show_run", raising(f"in {pane.id}"))
        for pane in shown:
            assert pane.id
            screen.action_show_pane(pane.id)
            bug = f"ZeroDivisionError('in {pane.id}')"
            await until(pilot, lambda bug=bug: bug in screen.bugs.values())
        assert screen.query_one(Banner).display
        await until(pilot, lambda: f": in {shown[-1].id}: this is a bug" in screen_text(screen))
        text = log.read_text()
        assert [text.count(f"ZeroDivisionError: in {pane.id}\n") for pane in shown] == [1] * len(shown)
        screen.action_show_pane("log")
        await until(pilot, lambda: f"ZeroDivisionError: in {shown[-1].id}" in screen_text(screen))
        Path("end").touch()
        await until(pilot, lambda: not screen.supervisor.trains_here)
        await until(pilot, lambda: "done" in status(screen))
        assert screen.supervisor.view.ended is not None
        assert screen.supervisor.view.ended.state == "done"
        bugs[:] = screen.bugs.values()
        assert len(bugs) == len(shown)


class Mixed(Screen[None]):
    """A screen of Textual's own widgets."""

    def compose(self) -> ComposeResult:
        yield Input()
        yield OptionList("one", "two")
        yield TextArea()
        yield Static("text")
        yield Button("press")


async def test_a_run_outlives_bugs_under_textuals_own_widgets(monkeypatch: pytest.MonkeyPatch) -> None:
    bugs: list[str] = []
    async with workbench(until_end, bugs=bugs) as (screen, pilot):
        await start_run(pilot)
        await until(pilot, lambda: screen.supervisor.view.iteration > 0)
        for widget, name in (
            (Input, "_on_key"),
            (Input, "render_line"),
            (OptionList, "get_content_height"),
            (TextArea, "_size_updated"),
            (Static, "render"),
            (Button, "on_mount"),
        ):
            monkeypatch.setattr(widget, name, raising(f"{widget.__name__}.{name}"), raising=False)
            bugs.append(f"ZeroDivisionError('{widget.__name__}.{name}')")
        await screen.app.push_screen(Mixed())
        screen.app.screen.query_one(Input).focus()
        await pilot.press("a")
        await until(pilot, lambda: {*screen.bugs.values()} == {*bugs})
        monkeypatch.undo()
        screen.app.pop_screen()
        await pilot.pause()
        assert screen.app.screen is screen
        bugs[:] = screen.bugs.values()
        Path("end").touch()
        await until(pilot, lambda: "done" in status(screen))


async def test_a_banner_that_fails_leaves_its_bug_and_the_first_one_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Path("workbench.log")
    async with workbench(until_end, log=log, bugs=["ZeroDivisionError('zoom')"]) as (screen, pilot):
        await start_run(pilot)
        await until(pilot, lambda: screen.supervisor.view.iteration > 0)
        monkeypatch.setattr(Banner, "say", raising("banner"))
        monkeypatch.setattr(type(screen), "action_zoom", raising("zoom"))
        await pilot.press("z")
        await until(pilot, lambda: "ZeroDivisionError: banner" in log.read_text())
        assert "ZeroDivisionError: zoom" in log.read_text()
        assert screen.query_one(LogPane).is_running
        Path("end").touch()
        await until(pilot, lambda: not screen.supervisor.trains_here)


CRASHING = """
import sys

sys.path.insert(0, {tests!r})
import scripted_run
from textual._compositor import Compositor
from workbench.cli.main import main
from workbench.screen.main_screen import MainScreen


def broken(*_):
    raise ZeroDivisionError("a bug of ours")


def zoom(screen):
    Compositor.reflow = broken
    screen.refresh(layout=True)


MainScreen.action_zoom = zoom
sys.modules["trainer.engine.training"] = scripted_run.training_module(scripted_run.Script(scripted_run.recorded))
sys.exit(main())
"""


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """Open a workbench whose layout fails from the key z on, which no application outlives."""
    (tmp_path / "crashing.py").write_text(CRASHING.format(tests=str(ROOT / "tests" / "support")))
    opened = Terminal(tmp_path, "recorded", tmp_path / "crashing.py")
    yield opened
    opened.close()
    if opened.process.poll() is None:
        opened.process.kill()
    opened.process.wait()


def test_a_run_goes_on_without_an_application_until_a_signal_saves_it(terminal: Terminal, tmp_path: Path) -> None:
    terminal.wait_for("Training F3")
    terminal.start_run("iteration 1/12")
    terminal.press("z")
    terminal.wait_for("ctrl+c saves a checkpoint and ends the run")
    assert terminal.process.poll() is None
    assert not any(isinstance(event, RunEnded) for event in read_journal(tmp_path / "events.jsonl").events)
    for _ in range(20):  # as a scheduler that does not wait
        terminal.process.send_signal(signal.SIGTERM)
    assert terminal.wait() == 130
    saved, end = read_journal(tmp_path / "events.jsonl").events[-2:]
    assert isinstance(saved, CheckpointSaved)
    assert isinstance(end, RunEnded)
    assert (end.state, end.reason) == ("stopped", REASONS[signal.SIGTERM])
    shown = terminal.raw.decode(errors="replace")
    said = shown[shown.rindex("\x1b[?1049l") :]  # on the terminal that is restored
    crash = tmp_path / "ppo-workbench" / "crash.log"
    assert f"unexpected ZeroDivisionError: a bug of ours: this is a bug, its traceback is in {crash}" in said
    assert "quickstart-0001 goes on training in this process" in said
    assert "ppo-workbench watch runs/quickstart-0001" in said
    assert "quickstart-0001 has ended: stopped" in said
    assert 'raise ZeroDivisionError("a bug of ours")' in crash.read_text()


def test_whatever_ends_the_application_is_kept_and_signals_then_end_the_run() -> None:
    app = WorkbenchApp(Opening())
    app.run = raising("the loop itself")  # type: ignore[method-assign]
    assert ui._show(app) is None
    assert repr(app.bug) == "ZeroDivisionError('the loop itself')"
    assert not app.handle_signal(signal.SIGHUP), "the run outlives its terminal"
    app.crashed = True
    assert app.handle_signal(signal.SIGHUP)
    assert app.ended_by == signal.SIGHUP


def test_a_second_interrupt_ends_a_run_without_a_screen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[bool] = []
    monkeypatch.setattr("workbench.app.leave_now", lambda: left.append(True))
    app = WorkbenchApp(Opening())
    for crashed in (False, True):
        app.crashed = crashed
        app.ended_by = None
        app.handle_signal(signal.SIGINT)
        assert left == []
        app.handle_signal(signal.SIGTERM)
        assert left == []
        app.handle_signal(signal.SIGINT)
    assert left == [True]
