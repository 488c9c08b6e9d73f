"""Base class of the dialogs around labelling that fill the screen: labelled fields, and a status line below them."""

from __future__ import annotations

from typing import TypeVar

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from workbench.kit.dialog import Dialog
from workbench.kit.key_footer import KeyFooter
from workbench.text import visible

T = TypeVar("T")


class LabelForm(Dialog[T]):
    """Dialog with a title, fields, a status line and the keys. A subclass implements `fields`."""

    DEFAULT_CLASSES = "label-form"
    busy = False  # writing: the dialog stays open until that is done

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title

    def fields(self) -> ComposeResult:
        """Yield the widgets between the title and the status line."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        yield Static(visible(self._title), markup=False, classes="title one-line")
        yield from self.fields()
        yield Static(id="status", markup=False)
        yield KeyFooter(palette=False)

    def action_close(self) -> None:
        if self.busy:
            self.show_status(Content.styled("Writing...", "$text-warning"))
        else:
            self.dismiss(None)

    def show_status(self, content: Content) -> None:
        self.query_one("#status", Static).update(content)

    def show_work(self, text: str) -> None:
        """Show what is going on."""
        self.show_status(Content.styled(text, "$text-accent"))

    def show_problem(self, problem: str) -> None:
        self.show_status(Content.styled(f"✖ {visible(problem)}", "$text-error"))


def row(*fields: tuple[str, Widget]) -> Horizontal:
    """Return one line of fields, each after its label."""
    parts: list[Widget] = []
    for place, (label, widget) in enumerate(fields):
        parts += [Static(label, classes="second label" if place else "label"), widget]
    return Horizontal(*parts, classes="fields")
