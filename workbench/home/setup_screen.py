"""Dialog of one question of a new configuration: a list of answers, and a text field for those that need a text."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import ClassVar, NamedTuple

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static

from trainer.errors import TrainerError
from workbench.home.setup_answers import Option, Question, Settings
from workbench.kit.dialog import Dialog, PlainInput
from workbench.text import visible


class Given(NamedTuple):
    """An answer: its place in the list, the text that was typed, and the settings that it stands for."""

    place: int
    text: str
    settings: Settings


class SetupScreen(Dialog[Given | None]):
    """Asks one question. Its result is the answer, once that has been checked; None to go back.

    number, count: of the question. before: the answer when it was asked the last time.
    """

    TITLE = "New configuration"
    HELP = "Three questions: model, prompts, reward. The answers open in Config as unsaved changes."
    DOCS = "quickstart"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "back", id="setup.back", tooltip="Go back one question; before the first, close"),
    ]

    def __init__(self, question: Question, number: int, count: int, before: Given | None = None) -> None:
        super().__init__()
        self._question, self._number, self._count = question, number, count
        self._before = before

    def compose(self) -> ComposeResult:
        options = self._question.options
        wide = max(len(option.title) for option in options) + 2
        with Vertical(classes="dialog"):
            heading = f"New configuration, {self._number} of {self._count}: {self._question.title}"
            yield Static(heading, markup=False, classes="question")
            yield OptionList(
                *(Content.assemble((f"{option.title:{wide}}", "bold"), option.text) for option in options),
                compact=True,
            )
            yield PlainInput(self._before.text if self._before else "", compact=True)
            yield Static(markup=False, classes="detail")

    def on_mount(self) -> None:
        listed = self.query_one(OptionList)
        listed.highlighted = self._before.place if self._before else 0
        listed.focus()
        self._show_field()

    @property
    def _option(self) -> Option:
        return self._question.options[self.query_one(OptionList).highlighted or 0]

    @on(OptionList.OptionHighlighted)
    @on(Input.Changed)
    def _show_field(self) -> None:
        """Show the text field if the answer under the cursor needs one, and what enter does."""
        field = self.query_one(PlainInput)
        field.display = bool(self._option.field)
        field.placeholder = self._option.field
        self.workers.cancel_group(self, "check")
        last = self._number == self._count
        self._say(
            self.hint(
                ("enter", "open in Config" if last else "next question"),
                ("setup.back", "cancel" if self._number == 1 else "back"),
            )
        )

    @on(OptionList.OptionSelected)
    def _choose(self) -> None:
        self._show_field()
        field = self.query_one(PlainInput)
        if self._option.field and not field.value.strip():
            field.focus()
        else:
            self._check()

    @on(Input.Submitted)
    def _submit(self) -> None:
        if self.query_one(PlainInput).value.strip():
            self._check()
        else:
            self._say(Content(f"✖ Enter {self._option.field}"))

    @work(exclusive=True, group="check")
    async def _check(self) -> None:
        place = self.query_one(OptionList).highlighted or 0
        option, text = self._option, self.query_one(PlainInput).value.strip()
        self._say(Content("Checking …"))
        try:
            settings = await asyncio.to_thread(partial(option.settings, text))
        except TrainerError as error:
            self._say(Content(f"✖ {visible(' '.join(str(error).split()))}"))
            if option.field:
                self.query_one(PlainInput).focus()
            return
        self.dismiss(Given(place, text, settings))

    def _say(self, line: Content) -> None:
        self.query_one(".detail", Static).update(line)
