"""Input line that searches the settings."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input


class SearchLine(Input):
    """Search input, hidden until requested; enter keeps the matches, escape shows all settings again."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "escape", "clear", "show all", id="config-search.clear", tooltip="End the search and show every setting"
        ),
        Binding("down", "submit", "to the rows", show=False, id="config-search.down", tooltip="Go to what was found"),
    ]

    class Cleared(Message):
        """Request to show all settings again."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(placeholder="search: a name, or a word of the help", compact=True, id=id)
        self.display = False

    def allow_focus(self) -> bool:
        return bool(self.display)

    def action_clear(self) -> None:
        self.post_message(self.Cleared())
