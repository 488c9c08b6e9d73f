"""Base class of the forms around labelling, which fill the screen: labelled fields, and a status line below them."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, TypeVar

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Select, Static

from trainer.errors import TrainerError
from workbench.kit.dialog import Dialog, PlainInput
from workbench.text import visible

R = TypeVar("R")
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

    def action_close(self) -> None:
        if self.busy:
            self.show_status("Writing...", "$text-warning")
        else:
            self.dismiss(None)

    def show_status(self, content: Content | str, style: str = "$text-accent") -> None:
        """Show what is going on, or what a key does."""
        self.query_one("#status", Static).update(
            Content.styled(content, style) if isinstance(content, str) else content
        )

    def show_problem(self, problem: str) -> None:
        self.show_status(f"✖ {visible(problem)}", "$text-error")

    async def tried(self, work: Awaitable[R], advice: str = "") -> R | None:
        """Return the result of `work`; None if it fails: then show why, and `advice`."""
        try:
            return await work
        except TrainerError as error:
            self.show_problem(f"{error}{advice}")
            return None


def row(*fields: tuple[str, Widget], unit: str = "") -> Horizontal:
    """Return one line of fields, each after its label. unit: behind the last one."""
    parts: list[Widget] = []
    for place, (label, widget) in enumerate(fields):
        parts += [Static(label, classes="second label" if place else "label"), widget]
    return Horizontal(*parts, *([Static(unit, classes="label")] if unit else []), classes="fields")


def columns_field(value: str = "") -> PlainInput:
    """Return the field for the names of a source's columns."""
    tooltip = "Names of columns, as with --column: ROLE=NAME, with commas between them; empty for the usual names"
    return text_field("columns", tooltip, value, placeholder="usual names, or prompt=question, a=left, b=right")


def columns_in(text: str) -> tuple[str, ...]:
    """Return the assignments in what was typed into a `columns_field`."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def text_field(name: str, tooltip: str, value: str = "", **more: Any) -> PlainInput:
    """Return a field for a line of text. more: arguments of Input."""
    return PlainInput(value, compact=True, id=name, tooltip=tooltip, **more)


def choice(name: str, options: list[tuple[str, str]], tooltip: str) -> Select[str]:
    """Return a field with `options`, the first one chosen."""
    return Select(options, value=options[0][1], allow_blank=False, compact=True, id=name, tooltip=tooltip)
