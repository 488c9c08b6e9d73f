"""Dialogs of the main screen: what should happen to a run when the user quits, and whether code is trusted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Button, OptionList, Static
from textual.widgets.option_list import Option

from trainer.rewards.code import Code
from workbench.kit.dialog import ConfirmScreen, Dialog, button_label
from workbench.system.code_trust import code_text
from workbench.text import visible

Choice = Literal["stop", "detach", "abort"]

_CHOICES: tuple[tuple[Choice, str, str], ...] = (
    ("stop", "Stop and save", "save a checkpoint, then leave"),
    ("detach", "Detach", "continue headless; watch shows it again"),
    ("abort", "Abort", "leave at once, without a checkpoint"),
)


class QuitScreen(Dialog[Choice | None]):
    """Dialog that returns the user's choice; None means to stay."""

    BINDINGS = [Binding("escape", "stay", "stay", id="quit.stay", tooltip="Close this dialog")]

    def __init__(self, run: str) -> None:
        super().__init__()
        self._run = run

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(
                f"{visible(self._run)} is training. What should happen to it?", markup=False, classes="question"
            )
            yield OptionList(
                *(
                    Option(Content.assemble((f"{title:15}", "bold"), (text, "$text-muted")), id=choice)
                    for choice, title, text in _CHOICES
                )
            )

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        choice = next(choice for choice, _, _ in _CHOICES if choice == event.option_id)
        self.dismiss(choice)

    def action_stay(self) -> None:
        self.dismiss(None)


class TrustScreen(ConfirmScreen):
    """Dialog that shows the code that the reward would run, and asks whether it may."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pagedown", "read(1)", "read on", id="trust.on", tooltip="Scroll the code down"),
        Binding("pageup", "read(-1)", "back", show=False, id="trust.back", tooltip="Scroll the code up"),
    ]

    def __init__(self, codes: Sequence[Code]) -> None:
        super().__init__("You have not trusted the Python code of this reward as it is now.", yes="Trust", no="Cancel")
        self._codes = codes

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self._question, markup=False, classes="question")
            with VerticalScroll(classes="code"):
                for code in self._codes:
                    head = f"{visible(code.name)}\nSHA-256 {code.sha256 or 'unknown'}\n"
                    yield Static(f"{head}\n{code_text(code)}\n", markup=False)
            yield Static("It runs with all of your rights, now and whenever a run names it.", classes="detail")
            with Horizontal(classes="buttons"):
                yield Button(button_label("n", self._no), compact=True, id="no")
                yield Button(button_label("y", self._yes), compact=True, id="yes")

    def action_read(self, pages: int) -> None:
        code = self.query_one(".code")
        code.scroll_relative(y=pages * max(code.size.height - 1, 1), animate=False)
