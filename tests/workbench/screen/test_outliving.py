"""A run outlives the application, whatever ends it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from apart import ROOT
from terminal_helper import Terminal

from trainer.events import CheckpointSaved, RunEnded
from trainer.runs.journal import read_journal
from workbench.app import WorkbenchApp
from workbench.opening import Opening
from workbench.system.signals import REASONS

CRASHING = """
import sys

sys.path.insert(0, {tests!r})
import scripted_run
from textual import work
from textual.app import App
from workbench.cli.main import main
from workbench.screen.main_screen import MainScreen


def broken(*_):
    raise ZeroDivisionError("a bug of ours")


@work
async def worker(screen):
    broken()


def loop(screen):
    screen.app.exit()


async def run_async(app, **options):
    await run(app, **options)
    if {bug} is loop:
        broken()


run, App.run_async = App.run_async, run_async
MainScreen.action_zoom = {bug}
sys.modules["trainer.engine.training"] = scripted_run.training_module(scripted_run.Script(scripted_run.recorded))
sys.exit(main())
"""


@pytest.fixture(params=["broken", "worker", "loop"])
def terminal(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    """Open a workbench in which the key z has a bug: in its action, in a worker that it starts, or in the loop."""
    text = CRASHING.format(tests=str(ROOT / "tests" / "support"), bug=request.param)
    (tmp_path / "crashing.py").write_text(text)
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


def test_a_signal_ends_a_run_that_outlives_the_application() -> None:
    app = WorkbenchApp(Opening())
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
