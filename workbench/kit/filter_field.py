"""A field that filters the list beside it."""

from __future__ import annotations

from textual import on
from textual.widget import Widget
from textual.widgets import Input

from workbench.kit.dialog import PlainInput


class FilterField(PlainInput):
    """A field above a list, hidden until it is opened; a filter that is active stays in sight.

    The pane reacts to `Input.Changed`. Enter goes back to the list.
    """

    DEFAULT_CSS = "FilterField { dock: top; }"

    def __init__(self, placeholder: str) -> None:
        super().__init__(placeholder=placeholder, compact=True)
        self.display = False

    def open(self) -> None:
        """Show the field, and type into it."""
        self.display = True
        self.focus()

    def clear_filter(self) -> None:
        """Remove the filter, and go back to the list."""
        self.value = ""
        self.leave()

    @on(Input.Submitted)
    def leave(self) -> None:
        """Go back to the list."""
        if self.parent is not None:
            self.parent.query("CursorList, OptionList").first(Widget).focus()
        self.display = bool(self.value)
