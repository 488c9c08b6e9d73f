"""A line of text that holds nothing a terminal would obey."""

from __future__ import annotations

from textual import events
from textual.widgets import Input

from workbench.text import visible


class PlainInput(Input):
    """An input; control characters of what is pasted are shown."""

    def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        super()._on_paste(events.Paste(visible(event.text, keep_newlines=True)))
        event.stop()
