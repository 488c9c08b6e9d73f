"""A dialog that asks for a line of text."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Static

from workbench.kit.dialog import Dialog
from workbench.text import visible


class TextPromptScreen(Dialog[str | None]):
    """A prompt for a text, which is its result; None when cancelled. It stays open until the text is accepted.

    check: returns why a text is not accepted, in one line, as it is typed; empty when it is. submit: uses the text, and
    returns the same.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "cancel", id="prompt.cancel", tooltip="Close this and change nothing")
    ]

    def __init__(
        self,
        title: str,
        value: str,
        check: Callable[[str], str],
        submit: Callable[[str], Awaitable[str]] | None = None,
    ) -> None:
        super().__init__()
        self._title, self._value, self._check, self._submit = title, value, check, submit
        self._submitting = False

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(visible(self._title), markup=False, classes="question")
            yield Input(visible(self._value), compact=True)
            yield Static(self._keys(), classes="detail")

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._tell(self._check(event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if not self._submitting and not self._check(event.value):
            self._submitting = True
            self._take(event.value)

    def action_cancel(self) -> None:
        if not self._submitting:
            self.dismiss(None)

    @work
    async def _take(self, text: str) -> None:
        try:
            problem = await self._submit(text) if self._submit else ""
        finally:
            self._submitting = False
        if problem:
            self._tell(problem)
        else:
            self.dismiss(text)

    def _tell(self, problem: str) -> None:
        """Show the problem, or the keys if there is none."""
        self.query_one(".detail", Static).update(Content(f"✖ {visible(problem)}") if problem else self._keys())

    def _keys(self) -> Content:
        return self.hint(("enter", "takes it"), ("prompt.cancel", "cancels"))
