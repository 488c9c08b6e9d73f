"""`ppo-workbench --no-ui`: a run without the workbench, from the configuration to the exit code."""

from __future__ import annotations

import argparse
import errno
from collections.abc import Callable
from functools import partial
from pathlib import Path

from trainer.config import Config
from trainer.errors import StorageError, TrainerError
from trainer.events import Event, RunStarted
from trainer.runs.folder import check_name_is_free
from trainer.runs.listing import is_complete
from workbench.cli.configuration import configuration, resumed
from workbench.headless import Display, choose
from workbench.numbers import counted
from workbench.run.session import Session
from workbench.system import output
from workbench.system.code_trust import is_given, require_trust
from workbench.system.signals import stop_on_signals

_READER_GONE = (errno.EPIPE, errno.EIO)  # the pipe's reader ended; the terminal was closed
_BUG = 1


def run(args: argparse.Namespace) -> int:
    """Train as the command line says and return the exit code. Raises TrainerError for what a user can fix."""
    if args.resume is not None:
        config, folder = resumed(args, Config)
        done = config.ppo.iterations
        if is_complete(folder, done):  # reported before loading, which takes seconds
            more = f"{output.PROGRAM} --no-ui --resume {args.resume} --set ppo.iterations={2 * done}"
            output.note(f"{folder.name} is complete after {counted(done, 'iteration')}; continue with {more}")
            return 0
        session = Session(config, resume=folder.root)
    else:
        config = configuration(args, Config)
        check_name_is_free(config)
        session = Session(config, preset=Path(args.config).name.removesuffix(".toml"))
    require_trust(config.reward, given=is_given(args))
    return headless(session, choose(args.display))


def headless(session: Session, display: Display) -> int:
    """Show `session` on `display` to its end, handle signals, and return the exit code."""
    follower = _Follower(session, display)
    try:
        with stop_on_signals(session.stop, follower.restore), session:
            try:
                follower.follow()
            finally:
                follower.close()
            return session.result().exit_code
    except TrainerError:
        raise
    except Exception as bug:  # noqa: BLE001 - a user gets one line, the traceback goes to a file
        output.crash(bug, follower.folder)
        return _BUG


class _Follower:
    """Bridge from a session's events to a display; it stops the run when the display's reader goes away."""

    def __init__(self, session: Session, display: Display) -> None:
        self._session = session
        self._display = display
        self._noticed = False
        self.folder: Path | None = None

    def follow(self) -> None:
        """Show events until the run is over."""
        while not self._session.finished:
            events = self._session.take(self._display.interval)
            self._guard(partial(self._show, events))

    def close(self) -> None:
        """Close the display."""
        self._guard(self._display.close)

    def restore(self) -> None:
        """Make the terminal usable; called from a signal handler."""
        self._display.restore()

    def _show(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, RunStarted):
                self.folder = Path(event.folder)
            self._display.show(event)
        if self._session.stop_reason and not self._noticed:
            self._noticed = True
            self._display.notice(f"{self._session.stop_reason}: saving a checkpoint; Ctrl+C ends at once without one")
        self._display.refresh()

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as problem:
            if problem.errno not in _READER_GONE:
                raise StorageError(f"cannot write to the output: {problem.strerror}: redirect it") from None
            self._display = Display()
            output.discard_stdout()
            self._session.stop("the reader of the output went away")
