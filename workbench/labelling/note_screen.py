"""Screen that edits the labeller's note on a comparison."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Static, TextArea

from workbench.kit.dialog import Dialog
from workbench.text import as_sent, typed


class NoteScreen(Dialog[str | None]):
    """Note dialog. Its result is the edited note; None if it is unchanged. Every key that closes it keeps the text."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,escape", "keep", "keep", priority=True, id="label-note.keep", tooltip="Keep the note and close"),
        Binding(
            "ctrl+j", "new_line", "new line", priority=True, show=False, id="label-note.line", tooltip="Another line"
        ),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Note on this comparison", classes="question")
            yield NoteArea(self._text)
            yield Static(
                self.hint(("label-note.keep", "keeps it"), ("label-note.line", "new line"), ("ctrl+z", "undoes")),
                classes="detail",
            )

    def on_mount(self) -> None:
        self.query_one(NoteArea).focus()

    def action_keep(self) -> None:
        area = self.query_one(NoteArea)
        self.dismiss(None if area.text == area.first else as_sent(area.text, self._text).strip())

    def action_new_line(self) -> None:
        self.query_one(NoteArea).insert("\n")


class NoteArea(TextArea):
    """Text area of the note; it shows control characters, also those of pasted text."""

    def __init__(self, text: str) -> None:
        super().__init__(typed(text), compact=True, highlight_cursor_line=False, tooltip="Kept with the label")
        self.first = self.text  # the document may normalise line ends

    def on_mount(self) -> None:
        self.move_cursor(self.document.end)

    async def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        await super()._on_paste(events.Paste(typed(event.text)))
