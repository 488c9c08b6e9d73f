"""Displays of a headless run: a live table on a terminal, a line per iteration in a log, or JSON lines."""

from __future__ import annotations

from trainer.events import Event


class Display:
    """A display of a run's events. This one shows nothing; the others override what they show.

    Every method is called on the main thread.
    """

    interval: float | None = None  # seconds between two `refresh` calls while nothing happens; None: not needed

    def show(self, event: Event) -> None:
        """Take the next event of the run; the next `refresh` may be the one that draws it."""

    def notice(self, message: str) -> None:
        """Show the user a message that is not an event."""

    def refresh(self) -> None:
        """Draw the changes since the last call."""

    def close(self) -> None:
        """Leave the terminal as it was, and print a summary of the run."""

    def restore(self) -> None:
        """Make the terminal usable. Called in a signal handler: uses no buffers, and the process ends afterwards."""
