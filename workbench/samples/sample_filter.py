"""The input line that searches and filters samples."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input


class SampleFilter(Input):
    """Input that is hidden until requested; enter keeps the matches, escape shows all samples again."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "clear", "show all", id="sample-filter.clear", tooltip="End the search, show every sample"),
        Binding("down", "submit", "to the list", show=False, id="sample-filter.down", tooltip="Go to what was found"),
    ]

    class Cleared(Message):
        """Message sent when all samples are to be shown again."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(placeholder="words, or score>0.5 kl<10 len>20 stop:length is:marked", compact=True, id=id)
        self.display = False

    def allow_focus(self) -> bool:
        return bool(self.display)

    def action_clear(self) -> None:
        self.post_message(self.Cleared())
