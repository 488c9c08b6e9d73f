"""How a headless run is shown: a live table on a terminal, a line an iteration in a log, or JSON lines."""

from __future__ import annotations

import os
import sys
from typing import Protocol, TextIO

from trainer.events import Event

NAMES = ("rich", "plain", "json")


class Display(Protocol):
    """Shows the events of a run. Every method is called on the main thread."""

    interval: float | None  # seconds between two `refresh` calls while nothing happens; None: not needed

    def show(self, event: Event) -> None:
        """Take one event."""

    def notice(self, message: str) -> None:
        """Tell the user something that is not an event."""

    def refresh(self) -> None:
        """Draw what the last `show` calls changed."""

    def close(self) -> None:
        """Leave the terminal as it was, and sum the run up."""

    def restore(self) -> None:
        """Make the terminal usable, from within a signal handler: no buffers. The process ends after it."""


def choose(name: str | None, stdout: TextIO | None = None) -> Display:
    """The display called `name`; without a name `rich` on a terminal and `plain` elsewhere."""
    stdout = stdout or sys.stdout
    if name is None:
        name = "rich" if stdout.isatty() and os.environ.get("TERM") != "dumb" else "plain"
    if name == "json":
        from workbench.headless.json import JsonDisplay

        return JsonDisplay(stdout)
    if name == "plain":
        from workbench.headless.plain import PlainDisplay

        return PlainDisplay(stdout)
    from workbench.headless.rich import RichDisplay

    return RichDisplay(stdout)
