"""Rich display: a table that stays in place, the default on a terminal."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from trainer.events import Alarm, Decision, Event, RolledBack, RunStarted, SettingChanged
from workbench.headless.dashboard import dashboard
from workbench.run.sentences import sentences, summary
from workbench.run.view import RunView
from workbench.text import visible

_SHOW_CURSOR = b"\x1b[?25h\n"


class RichDisplay:
    """A display that redraws status, metrics and samples in place on `stdout`; messages scroll away above.

    It respects NO_COLOR. If `stdout` is not a terminal, it writes the last state only, without cursor codes.
    """

    interval: float | None = 0.125

    def __init__(self, stdout: TextIO) -> None:
        self._stdout = stdout
        self._view = RunView()
        self._notice = ""
        self._changed = True
        # Set here, because FORCE_COLOR would put cursor codes into files.
        self._console = Console(file=stdout, force_terminal=stdout.isatty(), highlight=False)
        self._live = Live(
            console=self._console,
            auto_refresh=False,  # `refresh` draws: another thread would compete with the trainer
            redirect_stderr=sys.stderr.isatty(),  # not when it goes to a log file
        )

    def show(self, event: Event) -> None:
        self._view.take(event)
        self._changed = True
        if not self._live.is_started:
            self._live.start()
        if isinstance(event, RunStarted | SettingChanged | Alarm | Decision | RolledBack):
            for sentence in sentences(event):
                self._console.print(Text(visible(sentence), style="dim"))

    def notice(self, message: str) -> None:
        self._notice = message
        self._changed = True

    def refresh(self) -> None:
        if self._changed and self._live.is_started:
            self._changed = False
            self._draw()

    def close(self) -> None:
        self._notice = ""
        if self._live.is_started:
            self._draw()
        self._live.stop()
        lines = summary(self._view)
        if lines:
            self._console.print()
        for label, text in lines:
            self._console.print(Text.assemble((f"{label:<11}", "dim"), visible(text)))

    def restore(self) -> None:
        if self._live.is_started and self._console.is_terminal:
            with contextlib.suppress(OSError):
                os.write(self._stdout.fileno(), _SHOW_CURSOR)

    def _draw(self) -> None:
        self._live.update(dashboard(self._view, self._console.width, notice=self._notice), refresh=True)
