"""A dialog that asks a yes-or-no question."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Button, Static

from workbench.kit.dialog import Dialog
from workbench.text import visible


class ConfirmScreen(Dialog[bool]):
    """A question before an action. The button that does nothing has the focus, so enter by mistake does no harm.

    question and detail: any text, shown without markup. yes and no: labels of the buttons.
    """

    FOCUSED: ClassVar[str] = "#no"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes", id="confirm.yes", tooltip="Do it"),
        Binding("n,escape", "answer(False)", "no", id="confirm.no", tooltip="Close this and do nothing"),
        Binding(
            "left,right,up,down", "app.focus_next", "other", show=False, id="confirm.other", tooltip="Other button"
        ),
    ]

    def __init__(self, question: str, detail: str = "", yes: str = "Yes", no: str = "No") -> None:
        super().__init__()
        self._question, self._detail = question, detail
        self._yes, self._no = yes, no

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(visible(self._question), markup=False, classes="question")
            yield Static(visible(self._detail, keep_newlines=True), markup=False, classes="detail")
            with Horizontal(classes="buttons"):
                yield Button(button_label("n", self._no), compact=True, id="no")
                yield Button(button_label("y", self._yes), compact=True, id="yes")

    def on_mount(self) -> None:
        self.query_one(self.FOCUSED).focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


def button_label(key: str, text: str) -> Content:
    """Return the label of a button: the key that presses it, then `text`."""
    return Content.assemble((key, "bold"), " ", visible(text))
