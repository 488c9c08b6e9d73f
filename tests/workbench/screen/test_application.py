"""The application: what its first frame loads, no file on its thread, the real trainer, runs that outlive it."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from apart import ROOT
from file_guard import files_on_this_thread
from runs_helper import newest_checkpoint, workspace
from terminal_helper import Terminal
from waiting import until
from workbench_app import press_when_asked, screen_text, settle, start_run, status, workbench

from trainer.events import CheckpointSaved, RunEnded, SettingChanged
from trainer.files import unused
from trainer.runs.folder import RunFolder
from trainer.runs.journal import read_journal
from workbench.app import WorkbenchApp
from workbench.config.form import ConfigForm
from workbench.config.pane import ConfigPane
from workbench.kit.saving import write_lines
from workbench.log.pane import LogPane
from workbench.opening import Opening
from workbench.samples.ask_screen import AnswerList, AskScreen
from workbench.samples.sample_list import SampleList
from workbench.samples.sample_view import SampleView
from workbench.samples.token_facts import sentence
from workbench.system.signals import REASONS

HEAVY = ("mlx", "mlx_lm", "transformers", "datasets", "pyarrow", "torch", "huggingface_hub")

PROGRAM = """
import sys
from textual.app import App
from workbench.app import WorkbenchApp
from workbench.cli.main import main

def note(moment, *names):
    found = sorted(name for name in names if name in sys.modules)
    with open("loaded.txt", "a") as file:  # the screen takes what is printed
        file.write(f"{moment} {found}\\n")

open_panes, run = WorkbenchApp._open, App.run

async def first_frame_is_there(self):
    note("first frame", "pydantic", "pydantic_core", "trainer.config", "workbench.screen", *HEAVY)
    await open_panes(self)
    self.set_interval(0.05, panes_are_there)

def panes_are_there():
    app = WorkbenchApp.opened
    if app.main.ready:
        note("panes", *HEAVY)
        app.exit()

def headless(self, **options):
    WorkbenchApp.opened = self
    return run(self, headless=True, **options)

WorkbenchApp._open, App.run = first_frame_is_there, headless
sys.stdout.isatty = lambda: True
sys.exit(main([]))
"""


def test_the_first_frame_needs_no_configuration_and_the_panes_no_tensors(tmp_path: Path) -> None:
    program = f"HEAVY = {HEAVY}\n{PROGRAM}"
    keyboard, terminal = pty.openpty()
    done = subprocess.run([sys.executable, "-c", program], stdin=terminal, capture_output=True, text=True)
    for descriptor in (keyboard, terminal):
        os.close(descriptor)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "loaded.txt").read_text().splitlines() == ["first frame []", "panes []"]


async def test_files_are_found_on_the_thread_of_the_screen_only(tmp_path: Path) -> None:
    (taken := tmp_path / "a.txt").write_text("")
    with files_on_this_thread() as found:
        asyncio.get_running_loop().call_soon(write_lines, tmp_path / "b.txt", [])
        await asyncio.sleep(0)
    assert found == ["workbench/kit/saving.py:write_lines, open"]
    with files_on_this_thread() as found:
        await asyncio.to_thread(unused, taken)
        taken.read_text()  # by the test
    assert found == []


async def test_a_pane_that_reads_a_file_on_it_fails_each_test_of_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogPane, "action_filter", partial(write_lines, Path("a.txt"), []))

    async def search_the_log() -> None:
        async with workbench(pane="log") as (_, pilot):
            await pilot.press("slash")
            await settle(pilot)

    with pytest.raises(AssertionError, match=r"saving.py:write_lines, open"):
        await search_the_log()


async def test_a_run_is_started_paused_changed_resumed_and_stopped_twice_in_one_process(tmp_path: Path) -> None:
    toml = workspace(tmp_path)
    endless = ("ppo.iterations=100000", "eval.every=0")
    async with workbench(source=str(toml), overrides=endless) as (screen, pilot):
        for name, kl_coef in (("tiny-0001", 0.2), ("tiny-0002", 0.3)):
            await start_run(pilot)
            await until(pilot, lambda: len(screen.supervisor.view.history) >= 2)
            await pilot.press("space")
            await until(pilot, lambda: "‖ paused" in status(screen))
            held = screen.supervisor.view.iteration
            screen.query_one(ConfigPane).post_message(ConfigForm.LiveSettingChanged("ppo.kl_coef", kl_coef))
            await pilot.press("s")
            await until(pilot, lambda held=held: screen.supervisor.view.iteration > held)
            await until(pilot, lambda: "‖ paused" in status(screen))
            await pilot.press("space")
            await until(pilot, lambda: bool(screen.supervisor.view.settings))
            await pilot.press("f4")
            await until(pilot, lambda: "samples" in screen_text(screen) and "score" in screen_text(screen))
            await pilot.press("X")
            await press_when_asked(pilot, "y")
            await until(pilot, lambda: not screen.supervisor.trains_here)
            assert "■ stopped" in status(screen)
            assert screen.supervisor.failure == ""
            folder = RunFolder(tmp_path / "runs" / name)
            (change,) = [event for event in read_journal(folder.events).events if isinstance(event, SettingChanged)]
            assert (change.key, change.value) == ("ppo.kl_coef", kl_coef)
            assert newest_checkpoint(folder) is not None


async def test_a_token_is_explained_and_the_model_asked_while_it_trains_and_after(tmp_path: Path) -> None:
    toml = workspace(tmp_path)
    endless = ("ppo.iterations=100000", "eval.every=0")
    async with workbench(source=str(toml), overrides=endless) as (screen, pilot):

        async def ask() -> str:
            await pilot.press("p")
            await until(pilot, lambda: isinstance(screen.app.screen, AskScreen))
            await pilot.press("ctrl+r")
            await until(pilot, lambda: drawn().count("score +") == 2)
            text = drawn()
            await pilot.press("escape")
            await until(pilot, lambda: screen.app.screen is screen)
            return text

        def drawn() -> str:
            listed = screen.app.screen.query_one(AnswerList)
            return "\n".join(listed.render_line(y).text for y in range(listed.size.height))

        await start_run(pilot)
        await until(pilot, lambda: len(screen.supervisor.view.history) >= 2)
        await pilot.press("f4", "z")
        await until(pilot, lambda: screen.query_one(SampleList).selected is not None)
        await pilot.press("enter")
        opened = screen.query_one(SampleView)
        await until(pilot, lambda: opened.facts is not None)
        facts = opened.facts
        assert facts is not None
        await until(pilot, lambda: sentence(facts)[1:20] in screen_text(screen))
        assert "policy · after" in await ask()
        await pilot.press("X")
        await press_when_asked(pilot, "y")
        await until(pilot, lambda: not screen.supervisor.trains_here)
        assert "reference" in await ask(), "by the checkpoint, now that nothing trains"
        assert screen.supervisor.failure == ""


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
    terminal.start_run(" 1/12")
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


def test_a_signal_ends_a_run_that_outlives_the_application_and_a_second_interrupt_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left: list[bool] = []
    monkeypatch.setattr("workbench.app.leave_now", lambda: left.append(True))
    app = WorkbenchApp(Opening())
    assert not app.handle_signal(signal.SIGHUP), "the run outlives its terminal"
    app.crashed = True
    assert app.handle_signal(signal.SIGHUP)
    assert app.ended_by == signal.SIGHUP
    for crashed in (False, True):
        app.crashed = crashed
        app.ended_by = None
        app.handle_signal(signal.SIGINT)
        assert left == []
        app.handle_signal(signal.SIGTERM)
        assert left == []
        app.handle_signal(signal.SIGINT)
    assert left == [True]
