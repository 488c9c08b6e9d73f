"""A text input without control characters."""

from __future__ import annotations

from textual import events
from textual.widgets import Input

from workbench.text import visible


class PlainInput(Input):
    """An input that shows control characters of pasted text as symbols."""

    def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        super()._on_paste(events.Paste(visible(event.text, keep_newlines=True)))
        event.stop()
