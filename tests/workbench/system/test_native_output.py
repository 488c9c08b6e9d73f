"""Output of native code goes to the log, and the screen keeps the terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from pathlib import Path

from workbench.system.output import cut_log, new_log

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
import os, pty, sys
from pathlib import Path
from workbench.system.output import native_output_to
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


def test_what_is_drawn_on_a_terminal_that_has_gone_is_lost_and_no_error(tmp_path: Path) -> None:
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
