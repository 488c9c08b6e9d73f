"""`ppo-workbench --no-ui`: a run without the workbench, from the configuration to the exit code."""

from __future__ import annotations

import argparse
import errno
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from trainer.config import Config
from trainer.errors import StorageError, TrainerError
from trainer.events import Event, RunEnded, RunStarted
from workbench import diagnostics
from workbench.commands.sources import configuration, resumed
from workbench.displays import Display, choose
from workbench.displays.quiet import QuietDisplay
from workbench.session import Session
from workbench.signals import INTERRUPTED, stop_on_signals

_READER_GONE = (errno.EPIPE, errno.EIO)  # the pipe's reader ended; the terminal was closed
_BUG = 1


def run(args: argparse.Namespace) -> int:
    """Train as the command line says; returns the exit code. Raises TrainerError for what a user can mend."""
    if args.resume is not None:
        config, folder = resumed(args)
        return headless(Session(config, resume=folder, preset=config.run.name or "run"), choose(args.display))
    config = configuration(args)
    return headless(Session(config, preset=preset_name(args.config)), choose(args.display))


def headless(session: Session, display: Display) -> int:
    """Show `session` on `display` to its end, heed signals, and return the exit code."""
    follower = _Follower(session, display)
    try:
        with stop_on_signals(session.stop, display.restore), session:
            try:
                follower.follow()
                ended = session.result()
            finally:
                follower.close()
    except TrainerError:
        raise
    except Exception as bug:  # noqa: BLE001 - a user gets one line, the traceback goes to a file
        diagnostics.crash(bug, follower.folder)
        return _BUG
    return exit_code(ended, stopped=bool(session.stop_reason))


def exit_code(ended: RunEnded, *, stopped: bool) -> int:
    """130 for a run that we stopped, as shells have it; else the run's own. Says on stderr why a run failed."""
    if ended.state == "failed":
        diagnostics.error(ended.reason or "the run failed")
    if ended.state == "stopped" and stopped:
        return INTERRUPTED
    return ended.exit_code


def preset_name(source: str) -> str:
    """The name that runs of a configuration get by default: the preset's, or the file's without its ending."""
    return re.sub(r"[^\w.\-]+", "-", Path(source).stem) or "run"


class _Follower:
    """Takes a session's events to a display; survives a display whose reader goes away by stopping the run."""

    def __init__(self, session: Session, display: Display) -> None:
        self._session = session
        self._display = display
        self._told = False
        self.folder: Path | None = None

    def follow(self) -> None:
        while not self._session.finished:
            events = self._session.take(self._display.interval)
            self._guard(partial(self._show, events))

    def close(self) -> None:
        self._guard(self._display.close)

    def _show(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, RunStarted):
                self.folder = Path(event.folder)
            self._display.show(event)
        if self._session.stop_reason and not self._told:
            self._told = True
            self._display.notice(
                f"{self._session.stop_reason}: saving a checkpoint, then ending; Ctrl+C again ends at once without one"
            )
        self._display.refresh()

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as problem:
            if problem.errno not in _READER_GONE:
                raise StorageError(f"cannot write to the output: {problem.strerror}: send it elsewhere") from None
            diagnostics.discard(sys.stdout)
            self._display = QuietDisplay()
            self._session.stop("the reader of the output went away")
