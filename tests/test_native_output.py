"""What native code prints goes to the log, and the screen keeps the terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

CODE = """
import os, sys
from pathlib import Path
from workbench.native_output import native_output_to
with native_output_to(Path(sys.argv[1])):
    os.write(1, b"native on 1;")
    os.write(2, b"native on 2;")
    sys.__stderr__.write("drawn;")
    sys.__stderr__.flush()
    terminal = os.isatty(sys.__stdout__.fileno())
os.write(2, f"back, {terminal}".encode())
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
        return os.read(master, 10_000).decode()
    finally:
        os.close(master)
        os.close(terminal)


def test_native_output_is_in_the_log_and_not_on_the_terminal(tmp_path: Path) -> None:
    log = tmp_path / "a" / "workbench.log"
    assert run_in_a_terminal(log) == "drawn;back, True"
    assert log.read_text() == "native on 1;native on 2;"


def test_a_log_that_cannot_be_opened_costs_the_output_and_not_the_screen(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file where the folder should be")
    assert run_in_a_terminal(tmp_path / "a" / "workbench.log") == "drawn;back, True"
