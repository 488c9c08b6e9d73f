"""The workbench in a real terminal: it opens, obeys, leaves the terminal as it was, and outlives it."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest
from terminal_helper import DEADLINE, Terminal

from trainer.events import CheckpointSaved, RunEnded
from trainer.runs.journal import read_journal
from workbench.cli.main import main
from workbench.system.environment import is_light
from workbench.system.signals import REASONS


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()
        if terminal.process.poll() is None:
            terminal.process.kill()
        terminal.process.wait()


@pytest.mark.parametrize("stderr", ["", "errors"])
def test_it_trains_and_leaves_the_terminal_as_it_was_wherever_errors_go(
    stderr: str, terminals: list[Terminal], tmp_path: Path
) -> None:
    terminals.append(terminal := Terminal(tmp_path, "done", stderr=tmp_path / stderr if stderr else None))
    terminal.wait_for("Training F3")
    terminal.start_run("iteration 12/12")
    terminal.leave()
    assert terminal.wait() == 0
    for on, off in ((b"\x1b[?1049h", b"\x1b[?1049l"), (b"\x1b[?25l", b"\x1b[?25h")):  # second screen, hidden cursor
        assert terminal.raw.rindex(off) > terminal.raw.rindex(on)
    assert not stderr or b"\x1b" not in (tmp_path / stderr).read_bytes(), "the screen is drawn on the terminal"


def test_a_terminal_of_few_colours_gets_a_theme_of_its_own_colours(terminals: list[Terminal], tmp_path: Path) -> None:
    terminals.append(terminal := Terminal(tmp_path, "done", term="xterm"))
    terminal.wait_for("Training F3")
    terminal.start_run("iteration 12/12")
    terminal.leave()
    assert terminal.wait() == 0
    codes = {int(code) for codes in re.findall(rb"\x1b\[([0-9;]+)m", terminal.raw) for code in codes.split(b";")}
    coloured = {code for code in codes if 30 <= code <= 49 or 90 <= code <= 107}
    assert {36, 90} <= coloured, "cyan for what has the focus, bright black for what is muted"
    assert not coloured & {38, 48}, "none of a palette of 256, none of 24 bits"
    assert not (tmp_path / "workbench.toml").exists() or 'theme = ""' in (tmp_path / "workbench.toml").read_text()


def test_a_light_terminal_gets_a_light_theme_and_what_is_typed_meanwhile_is_kept(
    terminals: list[Terminal], tmp_path: Path
) -> None:
    terminals.append(terminal := Terminal(tmp_path, "done", ground="rgb:fafa/f9f9/f6f6", typed="q"))
    assert terminal.wait() == 0, "the q has closed it"
    assert b"48;5;231" in terminal.raw, "the ground of paper, and not of the dark default"
    assert not (tmp_path / "workbench.toml").exists() or 'theme = ""' in (tmp_path / "workbench.toml").read_text()


@pytest.mark.parametrize(
    ("received", "environment", "light"),
    [
        (b"ab\x1b]11;rgb:ffff/ffff/ffff\x07c\x1b[?62;1cd", "", True),
        (b"abcd\x1b[?6c", "0;15", True),
        (b"abcd", "15;0", False),
    ],
)
def test_what_is_typed_while_the_terminal_is_asked_is_returned(
    received: bytes, environment: str, light: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.system.environment.PATIENCE", 0.1)
    monkeypatch.setenv("COLORFGBG", environment)
    master, inner = pty.openpty()
    try:
        os.write(master, received)
        assert is_light(inner, inner) == (light, b"abcd")
    finally:
        os.close(master)
        os.close(inner)


def test_where_no_screen_can_be_shown_the_way_out_is_said(terminals: list[Terminal], tmp_path: Path) -> None:
    terminals.append(terminal := Terminal(tmp_path, "done", term="dumb"))
    assert terminal.wait() == 2
    assert b"TERM = 'dumb' cannot show the workbench" in terminal.raw
    assert b"\x1b[?1049h" not in terminal.raw


def test_without_a_terminal_a_named_run_is_trained_with_the_plain_display(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = []

    def train(args: Namespace, *, notice: str) -> tuple[int, None]:
        trained.append((args.config, args.display, notice))
        return 0, None

    monkeypatch.setattr("workbench.cli.train.train", train)
    assert main(["--config", "tiny"]) == 0
    assert trained == [("tiny", "plain", "the workbench needs a terminal; training with the plain display")]
    assert main([]) == 2, "nothing was asked for"
    assert len(trained) == 1
    assert "ppo-workbench --no-ui" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("term", "colorterm", "shown"),
    [
        ("xterm", "", 8),
        ("vt100", "", 0),
        ("xterm-256color", "", 256),
        ("xterm-kitty", "", 256),
        ("no-such-terminal", "", 16),
        ("xterm", "truecolor", 2**24),
    ],
)
def test_colours_are_counted_by_what_the_environment_says(term: str, colorterm: str, shown: int) -> None:
    done = subprocess.run(  # for terminfo is read once in a process
        [sys.executable, "-c", "from workbench.system.environment import colors; print(colors())"],
        env=os.environ | {"TERM": term, "COLORTERM": colorterm},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=True,
    )
    assert int(done.stdout) == shown


def test_a_run_outlives_its_terminal(terminals: list[Terminal], tmp_path: Path) -> None:
    terminals.append(terminal := Terminal(tmp_path, "patient"))
    terminal.wait_for("Training F3")
    terminal.start_run("iteration 1/12")
    terminal.close()  # SIGHUP
    (tmp_path / "go").touch()
    assert terminal.process.wait(DEADLINE) == 0
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_saves_and_leaves(number: signal.Signals, terminals: list[Terminal], tmp_path: Path) -> None:
    terminals.append(terminal := Terminal(tmp_path, "recorded"))
    terminal.wait_for("Training F3")
    terminal.start_run("iteration 1/12")
    for _ in range(50):  # as a scheduler that does not wait
        terminal.process.send_signal(number)
    assert terminal.wait() == 130
    assert_stopped(tmp_path, REASONS[number])


def test_a_signal_ends_a_run_that_hangs_before_it_has_begun(terminals: list[Terminal], tmp_path: Path) -> None:
    terminals.append(terminal := Terminal(tmp_path, "loading"))
    terminal.wait_for("Training F3")
    terminal.start_run("loading")
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.wait() == 130


@pytest.mark.parametrize("asked", [False, True])
def test_a_run_that_outlived_its_terminal_is_saved_by_a_signal(
    asked: bool, terminals: list[Terminal], tmp_path: Path
) -> None:
    terminals.append(terminal := Terminal(tmp_path, "recorded"))
    terminal.wait_for("Training F3")
    terminal.start_run("iteration 1/12")
    if asked:
        terminal.press("q")
        terminal.wait_for("What should happen")
    terminal.close()  # SIGHUP
    terminal.wait_until((tmp_path / "gone").exists)
    for _ in range(50):
        terminal.process.send_signal(signal.SIGHUP)  # already handled: the run goes on
        terminal.process.send_signal(signal.SIGTERM)
    assert terminal.process.wait(DEADLINE) == 130
    assert_stopped(tmp_path, REASONS[signal.SIGTERM])


def assert_stopped(folder: Path, reason: str) -> None:
    """Check that the run in `folder` saved a checkpoint and recorded in its journal that it stopped for `reason`."""
    saved, end = read_journal(folder / "events.jsonl").events[-2:]
    assert isinstance(saved, CheckpointSaved)
    assert isinstance(end, RunEnded)
    assert (end.state, end.reason) == ("stopped", reason)
