"""Folders and signal handlers that keep the tests apart from the user who runs them."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[2].resolve()
_SETTINGS = ("HF_", "PPO_WORKBENCH_", "XDG_", "TEXTUAL_", "NO_COLOR", "FORCE_COLOR", "TTY_", "COLUMNS", "LINES")
_SIGNALS = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2")


def leave_the_user() -> Path:
    """Give this process and its children their own home and settings, and return the folder of the whole test run.

    The folders of settings, state and caches all follow from the home. One cache is shared by all tests, so that the
    starter model is converted once. Workers of pytest-xdist inherit all of it; the process that began removes it.
    """
    if folder := os.environ.get("PPO_WORKBENCH_TESTS"):
        return Path(folder)
    run = Path(tempfile.mkdtemp(prefix="ppo-workbench-tests-")).resolve()
    atexit.register(shutil.rmtree, run, ignore_errors=True)
    for name in [name for name in os.environ if name.startswith(_SETTINGS)]:
        del os.environ[name]
    os.environ["PPO_WORKBENCH_TESTS"] = str(run)
    os.environ["PPO_WORKBENCH_CACHE"] = str(run / "cache")
    os.environ["HOME"] = str(make(run / "home"))
    return run


def make(folder: Path) -> Path:
    """Return `folder`, creating it if needed."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def give_children_default_signals() -> None:
    """Handle the signals that this process was started with ignored, by `nohup` or as a shell's background job.

    The process itself still ignores them. But children inherit ignored signals and not handlers, so they, and the
    code under test, see the default handling, as on a terminal.
    """
    for number in (getattr(signal, name) for name in _SIGNALS):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, _go_on)


def _go_on(number: int, frame: FrameType | None) -> None:
    """Do nothing."""


class Watch:
    """Watch for code that enters the checkout or starts a child there: it may hold the user's runs and labels."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.is_on = False
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        if event == "os.chdir":
            self._note("went into", arguments[0])
        elif event == "subprocess.Popen" and arguments[2] is not None:
            self._note(f"started {arguments[1]} in", arguments[2])

    def _note(self, what: str, folder: Any) -> None:
        if not isinstance(folder, int) and Path(os.fsdecode(folder)).resolve().is_relative_to(ROOT):
            self.seen.append(f"{what} {os.fsdecode(folder)}")
