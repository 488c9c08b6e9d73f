"""A dialog that asks a question with a list of answers, such as which preset to open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from workbench.kit.dialog import Dialog
from workbench.text import visible


class Answer(NamedTuple):
    """One answer of the list."""

    id: str
    title: str
    text: str = ""


class AnswerScreen(Dialog[str | None]):
    """A question with a list of answers. The result is the id of the chosen answer, or None when cancelled."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "put_away", "cancel", id="answer.cancel", tooltip="Close this and change nothing")
    ]

    def __init__(self, question: str, answers: Sequence[Answer]) -> None:
        super().__init__()
        self._question, self._answers = question, answers

    def compose(self) -> ComposeResult:
        wide = max(len(visible(answer.title)) for answer in self._answers) + 2
        with Vertical(classes="dialog"):
            yield Static(Content(visible(self._question)), classes="question")
            yield OptionList(
                *(
                    Option(
                        Content.assemble(
                            (f"{visible(answer.title):{wide}}", "bold"), (visible(answer.text), "$text-muted")
                        )
                    )
                    for answer in self._answers
                )
            )

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._answers[event.option_index].id)

    def action_put_away(self) -> None:
        self.dismiss(None)
