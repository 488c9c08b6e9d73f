"""Dialogs of the main screen: what should happen to the run when the user leaves, and whether to trust code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Button, Static

from trainer.rewards.code import Code
from workbench.kit.dialog import Answer, AnswerScreen, ConfirmScreen, button_label
from workbench.system.code_trust import code_text
from workbench.text import visible


class QuitScreen(AnswerScreen):
    """Dialog that asks what should happen to the run called `run` when the user leaves; None means to stay."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "stay", id="quit.stay", tooltip="Close this dialog")
    ]

    def __init__(self, run: str) -> None:
        answers = (
            Answer("stop", "Stop and save", "save a checkpoint, then leave"),
            Answer("detach", "Detach", "continue headless; watch shows it again"),
            Answer("abort", "Abort", "leave at once, without a checkpoint"),
        )
        super().__init__(f"{run} is training. What should happen to it?", answers)


class UnsavedScreen(ConfirmScreen):
    """Dialog that asks whether to discard the changes of the configuration `name`.

    save: saves them, and then does what would discard them.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", "save", "save", id="unsaved.save", tooltip="Save the configuration, then go on"),
    ]

    def __init__(self, name: str, save: Callable[[], object]) -> None:
        super().__init__(f"{name} has unsaved changes.", yes="Discard changes", no="Keep changes")
        self._save = save

    def compose_buttons(self) -> ComposeResult:
        yield Button(button_label("w", "Save"), compact=True, id="save", action="screen.save")

    def action_save(self) -> None:
        self.dismiss(False)
        self.app.call_later(self._save)


class TrustScreen(ConfirmScreen):
    """Dialog that shows the code that the reward would run, and asks whether it may."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pagedown", "read(1)", "read on", id="trust.on", tooltip="Scroll the code down"),
        Binding("pageup", "read(-1)", "back", show=False, id="trust.back", tooltip="Scroll the code up"),
    ]

    def __init__(self, codes: Sequence[Code]) -> None:
        super().__init__(
            "You have not trusted this version of the reward's Python code.",
            "It runs with all your permissions, now and in every later run that uses it.",
            yes="Trust",
            no="Cancel",
        )
        self._codes = codes

    def compose_detail(self) -> ComposeResult:
        with VerticalScroll(classes="code"):
            for code in self._codes:
                head = f"{visible(code.name)}\nSHA-256 {code.sha256 or 'unknown'}\n"
                yield Static(f"{head}\n{code_text(code)}\n", markup=False)
        yield from super().compose_detail()

    def action_read(self, pages: int) -> None:
        code = self.query_one(".code")
        code.scroll_relative(y=pages * max(code.size.height - 1, 1), animate=False)
