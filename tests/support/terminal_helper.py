"""The program in a pseudo-terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

from apart import ROOT

CODES = re.compile(rb"\x1b(\[[0-9;?<>=]*[ -/]*[@-~]|\][^\x07]*\x07|[()][0-9A-Z]|[=>])")
_SIZE = {"COLUMNS", "LINES"}  # pytest-xdist sets them for its workers, and Textual believes them
DEADLINE = 300  # seconds until a test has failed


class Terminal:
    """The workbench with a scripted trainer, in a pseudo-terminal of 120 x 36."""

    def __init__(
        self,
        folder: Path,
        script: str,
        program: Path = ROOT / "tests" / "support" / "scripted_run.py",
        *,
        term: str = "xterm-256color",
        ground: str = "rgb:0000/0000/0000",
        typed: str = "",
        stderr: Path | None = None,
    ) -> None:
        self.master, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 36, 120, 0, 0))
        home = {"SCRIPT": script, "PPO_WORKBENCH_CONFIG_DIR": str(folder), "XDG_STATE_HOME": str(folder)}
        errors = os.open(stderr, os.O_WRONLY | os.O_CREAT) if stderr else inner
        self.process = subprocess.Popen(
            [sys.executable, str(program)],
            stdin=inner,
            stdout=inner,
            stderr=errors,
            cwd=folder,
            env={name: value for name, value in os.environ.items() if name not in _SIZE}
            | {"TERM": term, "COLORTERM": "", "PYTHONPATH": str(ROOT)}
            | home,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that closing it sends SIGHUP
        )
        for descriptor in {inner, errors}:
            os.close(descriptor)
        self.raw = b""
        self.open = True
        if term != "dumb":
            self.wait_until(lambda: self._sent(b"\x1b[c"))
            self.press(f"{typed}\x1b]11;{ground}\x1b\\\x1b[?62;22c")  # answers of a terminal, after what is typed

    def wait_for(self, words: str) -> None:
        """Read until the terminal has received `words`."""
        end = time.monotonic() + DEADLINE
        while words.encode() not in CODES.sub(b"", self.raw):
            assert time.monotonic() < end, CODES.sub(b"", self.raw)[-2000:]
            if select.select([self.master], [], [], 0.5)[0]:
                try:
                    self.raw += os.read(self.master, 1 << 16)
                except OSError:  # the program has ended
                    assert words.encode() in CODES.sub(b"", self.raw), self.raw[-2000:]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Poll until `condition` holds."""
        end = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.01)

    def _sent(self, code: bytes) -> bool:
        self.drain()
        return code in self.raw

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def start_run(self, words: str) -> None:
        """Start the run, agree to the question, and read until the terminal has received `words`."""
        self.press(" ")
        self.wait_for("Start this run?")
        self.press("y")  # enter that comes before the buttons is lost, and one too many opens something else
        self.wait_for(words)

    def leave(self) -> None:
        """Quit; stop the run if it is still ending."""
        self.press("q")
        while self.process.poll() is None:
            self.drain()
            if b"What should happen" in self.raw:
                self.press("\r")

    def drain(self) -> None:
        """Read what the terminal has received."""
        with contextlib.suppress(OSError):  # the program has ended
            while select.select([self.master], [], [], 0.2)[0] and (data := os.read(self.master, 1 << 16)):
                self.raw += data

    def wait(self) -> int:
        """Return the exit code, reading on meanwhile: a program that writes to a full terminal waits for its reader."""
        end = time.monotonic() + DEADLINE
        while self.process.poll() is None:
            assert time.monotonic() < end, CODES.sub(b"", self.raw)[-2000:]
            self.drain()
        self.drain()
        return self.process.returncode

    def close(self) -> None:
        if self.open:
            os.close(self.master)
            self.open = False
