"""Dialog shown before a configuration runs Python code that the user has not trusted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Button, Static

from trainer.rewards.code import Code
from workbench.kit.confirm import ConfirmScreen, button_label
from workbench.system.code_trust import shown
from workbench.text import visible


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
                    yield Static(f"{head}\n{shown(code)}\n", markup=False)
            yield Static("It runs with all of your rights, now and whenever a run names it.", classes="detail")
            with Horizontal(classes="buttons"):
                yield Button(button_label("n", self._no), compact=True, id="no")
                yield Button(button_label("y", self._yes), compact=True, id="yes")

    def action_read(self, pages: int) -> None:
        code = self.query_one(".code")
        code.scroll_relative(y=pages * max(code.size.height - 1, 1), animate=False)
