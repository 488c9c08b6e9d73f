"""A message that stays until it is read: why a run could not start, or how it failed."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from workbench.text import visible


class Banner(Static):
    """Hidden while there is nothing to say; `escape` on the workbench puts it away."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(markup=False, id=id)
        self.display = False

    def say(self, message: str) -> None:
        """Show `message`; each of its lines is one problem."""
        shown = visible(message, keep_newlines=True).rstrip()
        self.update(Content.assemble(("✖ ", "bold"), shown, ("   esc hides this", "dim")))
        self.display = True

    def put_away(self) -> bool:
        """Hide it; False where there was nothing to hide."""
        was, self.display = self.display, False
        return bool(was)
