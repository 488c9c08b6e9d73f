"""Dialog that asks what should happen to the run when the user quits."""

from __future__ import annotations

from typing import Literal

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from workbench.kit.dialog import Dialog
from workbench.text import visible

Choice = Literal["stop", "detach", "abort"]

_CHOICES: tuple[tuple[Choice, str, str], ...] = (
    ("stop", "Stop and save", "save a checkpoint, then leave"),
    ("detach", "Detach", "the run goes on headless; watch shows it again"),
    ("abort", "Abort", "leave at once, without a checkpoint"),
)


class QuitScreen(Dialog[Choice | None]):
    """Dialog that returns the user's choice; None means to stay."""

    BINDINGS = [Binding("escape", "stay", "stay", id="quit.stay", tooltip="Close this and go on")]

    def __init__(self, run: str) -> None:
        super().__init__()
        self._run = run

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(f"{visible(self._run)} is training. What becomes of it?", markup=False, classes="question")
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
