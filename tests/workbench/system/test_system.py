"""What surrounds the program: the terminal, signals, its processes, its output and logs, and the machine."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from apart import ROOT
from terminal_helper import DEADLINE, Terminal

from trainer.config.schema import ModelConfig
from trainer.errors import ModelError
from trainer.events import CheckpointSaved, RunEnded
from trainer.models import blas
from trainer.runs.journal import read_journal
from workbench.cli.main import main
from workbench.labelling.session_worker import score as score_rows
from workbench.reward_model.training import RewardTraining
from workbench.system import machine, signals
from workbench.system.children import LOG, continue_headless, last_error, with_share_of_cores
from workbench.system.environment import is_light
from workbench.system.machine import room_for, this_machine
from workbench.system.output import cut_log, new_log
from workbench.system.signals import REASONS, stop_on_signals


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


COUNTING = """
import runpy
import sys
from textual.drivers.linux_driver import LinuxDriver


def start(driver):
    with open("started", "a") as file:
        file.write("x")
    start_application_mode(driver)


start_application_mode, LinuxDriver.start_application_mode = LinuxDriver.start_application_mode, start
sys.path.insert(0, {support!r})
runpy.run_module("scripted_run", run_name="__main__")
"""


def test_a_run_outlives_its_terminal_which_is_not_read_or_drawn_on_again(
    terminals: list[Terminal], tmp_path: Path
) -> None:
    program = tmp_path / "counting.py"
    program.write_text(COUNTING.format(support=str(ROOT / "tests" / "support")))
    terminals.append(terminal := Terminal(tmp_path, "patient", program))
    terminal.wait_for("Training F3")
    terminal.start_run(" 1/12")
    terminal.close()  # SIGHUP and SIGCONT
    (tmp_path / "go").touch()
    assert terminal.process.wait(DEADLINE) == 0
    assert (tmp_path / "ended").exists()
    assert (tmp_path / "started").read_text() == "x"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_saves_and_leaves(number: signal.Signals, terminals: list[Terminal], tmp_path: Path) -> None:
    terminals.append(terminal := Terminal(tmp_path, "recorded"))
    terminal.wait_for("Training F3")
    terminal.start_run(" 1/12")
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
    terminal.start_run(" 1/12")
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


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what a signal handler does: the reasons of its stops, and that it leaves."""
    made: list[str] = []

    def leave() -> None:
        made.append("leave")
        raise SystemExit(130)

    monkeypatch.setattr(signals, "leave_now", leave)
    return made


@pytest.mark.parametrize("number", REASONS)
def test_each_signal_asks_for_a_stop_and_names_itself(number: signal.Signals, calls: list[str]) -> None:
    with stop_on_signals(calls.append, lambda: calls.append("last")):
        signal.raise_signal(number)
    assert len(calls) == 1
    assert number.name in calls[0]


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_after_any_signal_leaves_at_once(first: signal.Signals, calls: list[str]) -> None:
    with stop_on_signals(calls.append, lambda: calls.append("last")):
        signal.raise_signal(first)
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGINT)
    assert calls[1:] == ["last", "leave"]


def test_signals_after_a_stop_do_not_kill_the_process_on_its_way_out(calls: list[str]) -> None:
    with stop_on_signals(calls.append, lambda: calls.append("last")):
        for _ in range(50):
            signal.raise_signal(signal.SIGTERM)
    for number in REASONS:
        signal.raise_signal(number)
    assert set(calls) == {REASONS[signal.SIGTERM]}


def test_handlers_are_put_back_and_ignored_signals_stay_ignored(calls: list[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    hang_up = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with stop_on_signals(calls.append, lambda: calls.append("last")):
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGTERM) != before
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, hang_up)
    assert signal.getsignal(signal.SIGTERM) == before
    assert calls == []


PLANTED = ("random.py", "trainer.py", "workbench.py", "pydantic.py")

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@pytest.mark.parametrize(
    ("jobs", "given", "share"),
    [(2, {}, "3"), (4, {}, "1"), (9, {}, "1"), (1, {}, None), (2, {"MKL_NUM_THREADS": "5"}, None)],
)
def test_each_process_gets_its_share_of_six_cores_unless_the_user_has_set_one(
    jobs: int, given: dict[str, str], share: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(6), raising=False)
    for name in THREADS:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert with_share_of_cores(jobs) == {**os.environ, **(dict.fromkeys(THREADS, share) if share else {})}


def test_the_last_error_of_a_log_counts_else_its_last_line() -> None:
    log = io.BytesIO(b"ppo-workbench: error: first\nppo-workbench: error: second\nTraceback\n\n")
    assert last_error(log) == "second"
    assert last_error(io.BytesIO(b"one\ntwo\n\n")) == "two"
    assert last_error(io.BytesIO()) == ""


def detach(folder: Path) -> str:
    continue_headless(folder).wait()
    return (folder / LOG).read_text()


def train(folder: Path) -> str:
    training = RewardTraining(folder / "preferences.db", folder, [])
    training.process.wait()
    return training.end()[1]


def score(folder: Path) -> str:
    with pytest.raises(ModelError) as refused:
        score_rows("nowhere", [("Once", " there was joy.")], closing=threading.Event())
    return str(refused.value)


@pytest.mark.parametrize(
    ("start", "reported"),
    [(detach, "no run was started there"), (train, "preferences.db"), (score, "nowhere")],
    ids=["detach", "reward training", "scoring"],
)
def test_a_child_imports_nothing_from_the_working_folder(
    start: Callable[[Path], str], reported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    for name in PLANTED:
        (tmp_path / name).write_text(f"open({str(tmp_path / 'executed')!r}, 'w').close()\nraise SystemExit(99)\n")
    assert reported in start(tmp_path)
    assert not (tmp_path / "executed").exists()


def test_every_place_that_starts_the_interpreter_keeps_the_working_folder_out_of_it() -> None:
    modules = [path for package in ("trainer", "workbench") for path in (ROOT / package).rglob("*.py")]
    starts = re.compile(r'\[(?:sys\.executable|_PYTHON), "(-\w+)"')
    for path in modules:
        if "sys.executable" in (text := path.read_text()):
            options = starts.findall(text)
            assert options, path
            assert all({"P", "I"} & set(option) for option in options), path


CODE = """
import os, sys
from pathlib import Path
from workbench.system.output import native_output_to
with native_output_to(Path(sys.argv[1])):
    os.write(1, b"native on 1;")
    os.write(2, b"native on 2;")
    sys.__stderr__.write("drawn;")
    sys.__stderr__.flush()
    terminal = os.isatty(sys.__stdout__.fileno())
os.write(2, f"back, {terminal}.".encode())
"""

GONE = """
import os, pty, signal, sys
from pathlib import Path
from workbench.system.output import native_output_to
heard = []
signal.signal(signal.SIGHUP, lambda number, _: heard.append(number))
master, terminal = pty.openpty()
os.dup2(terminal, 1)
os.dup2(terminal, 2)
os.close(terminal)
with native_output_to(Path(sys.argv[1])):
    os.close(master)
    for _ in range(100):
        sys.__stderr__.write("drawn" * 1000)
        sys.__stderr__.flush()
    sys.__stderr__.write("left in the buffer")
sys.exit(0 if heard == [signal.SIGHUP] else f"heard {heard}")
"""


def run_in_a_terminal(log: Path) -> str:
    master, terminal = pty.openpty()
    try:
        subprocess.run(
            [sys.executable, "-c", CODE, str(log)],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            check=True,
        )
        printed = b""
        while not printed.endswith(b".") and select.select([master], [], [], 10)[0]:  # a pty hands it over in parts
            printed += os.read(master, 10_000)
        return printed.decode()
    finally:
        os.close(master)
        os.close(terminal)


def test_native_output_is_in_the_log_and_not_on_the_terminal(tmp_path: Path) -> None:
    log = tmp_path / "a" / "workbench.log"
    assert run_in_a_terminal(log) == "drawn;back, True."
    assert log.read_text() == "native on 1;native on 2;"


def test_a_log_that_cannot_be_opened_costs_the_output_and_not_the_screen(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file where the folder should be")
    assert run_in_a_terminal(tmp_path / "a" / "workbench.log") == "drawn;back, True."


def test_what_is_drawn_on_a_terminal_that_has_gone_is_lost_and_one_hang_up_instead_of_an_error(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", GONE, str(tmp_path / "log")], check=True)
    assert (tmp_path / "log").read_text() == ""


def test_each_process_has_a_log_and_the_newest_of_others_stay(tmp_path: Path) -> None:
    for number in range(12):
        log = tmp_path / f"workbench-{number}.log"
        log.touch()
        os.utime(log, (number, number))
    (tmp_path / "notes.log").touch()
    assert new_log(tmp_path) == tmp_path / f"workbench-{os.getpid()}.log"
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {"notes.log", *(f"workbench-{number}.log" for number in range(3, 12))}


def test_a_long_log_is_cut_to_its_last_lines_and_continued(tmp_path: Path) -> None:
    log = tmp_path / "workbench-1.log"
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(descriptor, b"one line of it\n" * 1000)
        assert not cut_log(log)
        for _ in range(300):
            os.write(descriptor, b"one line of it\n" * 1000)
        assert cut_log(log)
        os.write(descriptor, b"the last one\n")
    finally:
        os.close(descriptor)
    lines = log.read_bytes().splitlines()
    assert 900_000 < log.stat().st_size < 1_100_000
    assert {*lines[:-1]} == {b"one line of it"}
    assert lines[-1] == b"the last one"
    assert not cut_log(tmp_path / "missing.log")


@pytest.fixture(autouse=True)
def _memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=100, available=40))
    machine.nvidia_gpu.cache_clear()
    yield
    machine.nvidia_gpu.cache_clear()


def smi(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Put a program nvidia-smi that runs `body` first on the path, on a machine whose MLX uses a GPU."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(blas, "mlx_runs_on_linux_cpu", lambda: False)


def test_a_cpu_has_what_is_free_now_and_at_most_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "mlx_runs_on_linux_cpu", lambda: True)
    found = this_machine()
    assert found.device.startswith("CPU, ")
    assert (found.now, found.most, found.total) == (40, 100, 100)


def test_a_mac_leaves_memory_to_other_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    found = this_machine()
    assert found.device.endswith(" GPU")
    assert (found.now, found.most, found.total) == (70, 70, 100)


def test_a_gpu_has_its_own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, "echo 'NVIDIA H100, 80GB HBM3, 81559'; echo 'another, 1'")
    found = this_machine()
    assert found.device == "NVIDIA H100, 80GB HBM3"
    assert found.now == found.most == found.total == 81559 * 2**20


@pytest.mark.parametrize("body", ["exit 9", "true", "echo 'a driver that is broken'", "echo 'x, [N/A]'"])
def test_a_driver_that_says_nothing_leaves_the_cpu(body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, body)
    assert this_machine().device.startswith("CPU, ")


def test_a_limit_of_the_configuration_bounds_the_room_of_a_run() -> None:
    most = this_machine().most
    assert room_for(ModelConfig()) == most
    assert room_for(ModelConfig(memory_limit=most / 2e9)) == round(most / 2)
    assert room_for(ModelConfig(memory_limit=1e6)) == most
