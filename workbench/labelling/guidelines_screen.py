"""Screen that shows the guidelines of a labelling session."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Static, TextArea

from workbench.kit.dialog import Dialog
from workbench.text import typed


class GuidelinesScreen(Dialog[bool]):
    """Guidelines dialog with scrollable text. Its result is True if enter closed it.

    begin: whether enter begins a session and escape cancels it.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "close(True)", "go on", priority=True, id="label-guidelines.go-on", tooltip="Go on to label"),
        Binding("escape", "close(False)", "close", id="label-guidelines.close", tooltip="Close the guidelines"),
        Binding("g", "close(False)", "close", show=False, id="label-guidelines.same", tooltip="Close the guidelines"),
    ]

    def __init__(self, text: str, *, begin: bool = False) -> None:
        super().__init__()
        self._text, self._begin = text, begin

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Guidelines", classes="question")
            yield TextArea(
                typed(self._text) or _NONE,
                read_only=True,
                show_cursor=False,
                compact=True,
                highlight_cursor_line=False,
                tooltip="What the labels of this session go by",
            )
            go_on, close = "label-guidelines.go-on", "label-guidelines.close"
            begin = self.hint((go_on, "begins to label"), (close, "goes back"))
            yield Static(begin if self._begin else self.hint((close, "closes"), ("↑ ↓", "scroll")), classes="detail")

    def on_mount(self) -> None:
        self.query_one(TextArea).focus()

    def action_close(self, agreed: bool) -> None:
        self.dismiss(agreed)


_NONE = "This session has no guidelines. A new session takes a text file of them."
