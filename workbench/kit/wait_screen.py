"""A screen below the dialogs of one action, which takes the keys until the first of them opens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Static

from workbench.kit.dialog import Dialog
from workbench.kit.typed_ahead import KeepsText

_PATIENCE = 0.3  # seconds until it shows that the action takes time


class WaitScreen(KeepsText, Dialog[None]):
    """Does the work of an action that reads before it opens a dialog. Closes after both.

    Text typed until then is for the dialog: the pane below would take it for its keys.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "cancel", id="wait.cancel", tooltip="Stop reading and open no dialog"),
    ]

    def __init__(self, action: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._action = action

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Reading...", classes="question")
            yield Static(self.hint(("wait.cancel", "cancel")), classes="detail")

    def on_mount(self) -> None:
        self.set_timer(_PATIENCE, lambda: self.set_class(self.is_active, "-slow"))
        self._act()

    @work
    async def _act(self) -> None:
        try:
            await self._action()
        finally:
            if self.is_active:
                self.call_after_refresh(self._close)  # after a dialog that the action requested by a message
            else:
                self._close()

    def _close(self) -> None:
        self.dismiss()  # not awaited: it ends once this screen is gone

    def on_screen_suspend(self) -> None:
        self.remove_class("-slow")
