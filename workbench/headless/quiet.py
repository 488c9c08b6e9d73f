"""Shows nothing: takes the place of a display whose reader went away."""

from __future__ import annotations

from trainer.events import Event


class QuietDisplay:
    """A display that drops everything."""

    interval: float | None = None

    def show(self, event: Event) -> None:
        """Drop it."""

    def notice(self, message: str) -> None:
        """Drop it."""

    def refresh(self) -> None:
        """Nothing is drawn."""

    def close(self) -> None:
        """Nothing was opened."""

    def restore(self) -> None:
        """Nothing was changed."""
