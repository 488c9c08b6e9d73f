"""A line of text that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from workbench.text import visible


class TextPromptScreen(ModalScreen[str | None]):
    """Asks for a text that `validate` accepts; None when it was cancelled.

    validate: why a text cannot be taken, in one line; empty when it can.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "cancel", id="prompt.cancel", tooltip="Close this and change nothing")
    ]

    def __init__(self, title: str, value: str, validate: Callable[[str], str]) -> None:
        super().__init__()
        self._title, self._value, self._validate = title, value, validate

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(visible(self._title), markup=False, classes="question")
            yield Input(visible(self._value), compact=True)
            yield Static(_KEYS, classes="detail")

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        problem = self._validate(event.value)
        self.query_one(".detail", Static).update(Content(f"✖ {visible(problem)}") if problem else _KEYS)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if not self._validate(event.value):
            self.dismiss(event.value)

    def action_cancel(self) -> None:
        self.dismiss(None)


_KEYS = Content.assemble(("enter", "bold"), " takes it   ", ("esc", "bold"), " cancels")
