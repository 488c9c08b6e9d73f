"""A display that shows nothing, in place of one whose reader went away."""

from __future__ import annotations

from trainer.events import Event


class QuietDisplay:
    """A display that drops everything."""

    interval: float | None = None

    def show(self, event: Event) -> None:
        """Drop the event."""

    def notice(self, message: str) -> None:
        """Drop the message."""

    def refresh(self) -> None:
        """Draw nothing."""

    def close(self) -> None:
        """Do nothing: nothing was opened."""

    def restore(self) -> None:
        """Do nothing: nothing was changed."""
