"""Displays of a headless run: a live table on a terminal, a line an iteration in a log, or JSON lines."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from trainer.events import Event


class Display:
    """A display of a run's events. This one shows nothing; the others override what they show.

    Every method is called on the main thread.
    """

    interval: float | None = None  # seconds between two `refresh` calls while nothing happens; None: not needed

    def show(self, event: Event) -> None:
        """Take one event."""

    def notice(self, message: str) -> None:
        """Show the user a message that is not an event."""

    def refresh(self) -> None:
        """Draw the changes since the last call."""

    def close(self) -> None:
        """Leave the terminal as it was, and print a summary of the run."""

    def restore(self) -> None:
        """Make the terminal usable. Called in a signal handler: uses no buffers, and the process ends afterwards."""


def choose(name: str | None, stdout: TextIO | None = None) -> Display:
    """Return the display called `name`; without a name, `rich` on a terminal and `plain` elsewhere."""
    stdout = stdout or sys.stdout
    if name is None:
        name = "rich" if stdout.isatty() and os.environ.get("TERM") != "dumb" else "plain"
    if name == "json":
        from workbench.headless.plain import JsonDisplay

        return JsonDisplay(stdout)
    if name == "plain":
        from workbench.headless.plain import PlainDisplay

        return PlainDisplay(stdout)
    from workbench.headless.rich import RichDisplay

    return RichDisplay(stdout)
