"""List of a setting's choices, shown over the form below its row."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from workbench.config.fields import FormField


class ChoiceList(OptionList):
    """List of choices: enter takes one, escape cancels."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "cancel", id="config-choices.cancel", tooltip="Leave the value as it was"),
    ]

    class Cancelled(Message):
        """The user cancelled; the value stays as it was."""

    def __init__(self, field: FormField, value: object) -> None:
        super().__init__(*(Option(Content(choice), id=choice) for choice in field.choices), compact=True)
        self.field = field
        if value in field.choices:
            self.highlighted = field.choices.index(str(value))

    def action_leave(self) -> None:
        self.post_message(self.Cancelled())
